"""Table of accelerators: memory as the driver reports it (a card sold as 80 GB has 79.2 GiB), dense bfloat16 FLOPs with float32
accumulation from the vendors' data sheets, and bandwidth. Imports no torch."""

import difflib
import re
from dataclasses import dataclass

from model_ops.jobs import Misuse

SHOWN_OF_SOLD = 0.98
"""The driver of a card sold as N GB reports about this share of N GiB."""


class UnknownDevice(Misuse):
    """The device is not in the table; the message lists the known devices and the form `4x24GB`."""


@dataclass(frozen=True)
class Device:
    """One accelerator, or this machine's CPU. None: not known."""

    name: str
    memory_gib: float
    bf16_tflops: float | None = None
    bandwidth_tb_s: float | None = None
    per_node: int = 8
    """Devices of one node, joined by a fast link; the inner mesh axes stay within a node."""
    capability: int | None = None
    """NVIDIA's compute capability, times ten."""

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"


DEVICES = {
    device.name.lower(): device
    for device in (
        Device("B200", 178.4, 2250, 7.7, capability=100),
        Device("H200", 139.8, 989, 4.8, capability=90),
        Device("GH200", 94.5, 989, 4.0, 1, capability=90),
        Device("H100", 79.2, 989, 3.35, capability=90),
        Device("H100-PCIe", 79.2, 756, 2.0, capability=90),
        Device("A100", 79.2, 312, 2.04, capability=80),
        Device("A100-40", 39.4, 312, 1.56, capability=80),
        Device("L40S", 44.4, 362, 0.86, capability=89),
        Device("L4", 22.0, 121, 0.30, capability=89),
        Device("A10", 22.0, 125, 0.60, capability=86),
        Device("A6000", 47.4, 155, 0.77, capability=86),
        Device("RTX6000Ada", 47.4, 364, 0.96, capability=89),
        Device("RTX5090", 31.4, 210, 1.79, capability=120),
        Device("RTX4090", 23.5, 165, 1.01, capability=89),
        Device("RTX3090", 23.6, 71, 0.94, capability=86),
        Device("MI300X", 191.7, 1307, 5.3),
        Device("MI325X", 255.7, 1307, 6.0),
    )
}
ALSO_CALLED = {
    "a100-80": "a100", "a100-80gb": "a100", "a100-40gb": "a100-40", "h100-80": "h100", "h100-80gb": "h100", "h100-sxm": "h100",
    "4090": "rtx4090", "3090": "rtx3090", "5090": "rtx5090", "h100pcie": "h100-pcie",
}  # fmt: skip

DRIVER_NAMES = (
    ("h100 pcie", "h100-pcie"), ("gh200", "gh200"), ("h100", "h100"), ("h200", "h200"), ("b200", "b200"),
    ("a100-sxm4-40", "a100-40"), ("a100-pcie-40", "a100-40"), ("a100", "a100"), ("l40s", "l40s"), (" l4", "l4"),
    ("rtx 6000 ada", "rtx6000ada"), ("a6000", "a6000"), ("rtx 5090", "rtx5090"), ("rtx 4090", "rtx4090"),
    ("rtx 3090", "rtx3090"), ("mi300x", "mi300x"), ("mi325x", "mi325x"),
)  # fmt: skip
"""(part of a driver's name, name in the table); the first match counts."""


def parse_devices(text: str) -> tuple[int, Device]:
    """Parses the option --gpus into the number of devices and the device. Raises UnknownDevice. Accepts `8xH100`, `h200`, `2x
    RTX 4090`, `4x24GB` (memory only, so no estimate of speed) and `cpu` (this machine)."""
    parts = re.fullmatch(r"\s*(?:(\d+)\s*[xX*]\s*)?(.+?)\s*", text)
    if parts is None:
        raise UnknownDevice(f"--gpus {text!r}: give a number and a device, such as 8xH100, 4x24GB or cpu")
    count = int(parts[1] or 1)
    if count < 1:
        raise UnknownDevice(f"--gpus {text!r}: give at least one device")
    name = re.sub(r"[\s_]+", "", parts[2]).lower().removeprefix("nvidia").removeprefix("geforce").removeprefix("amd")
    if name == "cpu":
        if count > 1:
            raise UnknownDevice(f"--gpus {text!r}: a CPU counts as one device; write cpu")
        return 1, this_machine()
    sized = re.fullmatch(r"(\d+(?:\.\d+)?)(gi?b)", name)
    if sized is not None:
        memory = float(sized[1]) * (1.0 if sized[2] == "gib" else SHOWN_OF_SOLD)
        if memory <= 0:
            raise UnknownDevice(f"--gpus {text!r}: the memory must be above 0")
        return count, Device(sized[0].upper().replace("GIB", "GiB"), memory)
    device = DEVICES.get(ALSO_CALLED.get(name, name))
    if device is None:
        known = ", ".join(device.name for device in DEVICES.values())
        near = difflib.get_close_matches(name, DEVICES, n=1)
        meant = f" (did you mean {DEVICES[near[0]].name}?)" if near else ""
        raise UnknownDevice(
            f"--gpus {text!r}: unknown device{meant}; known are {known} and cpu, or give the memory, such as 4x24GB"
        )
    return count, device


def this_machine() -> Device:
    """This machine's CPU with all of the machine's memory."""
    import psutil

    return Device("cpu", psutil.virtual_memory().total / 2**30, per_node=1)


def device_of(driver_name: str) -> Device | None:
    """The device by the driver's name of it; None if the table does not have it."""
    lowered = driver_name.lower()
    return next((DEVICES[name] for contained, name in DRIVER_NAMES if contained in lowered), None)


def peak_bf16_flops(driver_name: str) -> float | None:
    """Peak bfloat16 FLOP/s by the driver's name of the device; None if the table does not have it."""
    device = device_of(driver_name)
    return None if device is None or device.bf16_tflops is None else device.bf16_tflops * 1e12
