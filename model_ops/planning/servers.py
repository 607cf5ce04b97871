"""Which server loads which scheme on which device, without torch. It was read in the sources of VERSIONS; `Support.source`
names the file. Rows with `seen` were loaded by that server on an x86 CPU without AMX, with the same log-probabilities as our
own layers (docs/quantization.md). Nothing here was run on a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from model_ops.machine import ALSO_CALLED, DEVICES

SERVERS = ("vllm", "sglang", "transformers")
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23", "transformers": "5.23.0"}
LLAMA_CPP = "llama.cpp"
"""Reads the GGUF file of `quantize.gguf` and none of the schemes."""
"""Versions whose sources were read."""
ANY_GPU = 50
"""Compute capability (times ten) below which no current torch build runs."""

_CT = "compressed_tensors/schemes/compressed_tensors_"


class PlaceError(ValueError):
    """A place to serve that is not known; the message says what would be."""


@dataclass(frozen=True)
class Support:
    """How one server loads one scheme. Compute capabilities are times ten: 89 is 8.9."""

    gpu: int | None
    """Least capability of an NVIDIA device that loads it; None if none does."""
    source: str
    """Source of the entry."""
    cpu: Literal["any", "amx"] | None = None
    """X86 CPUs that load it."""
    below: int | None = None
    """First capability that no longer loads it."""
    activations_from: int | None = None
    """Least capability whose kernels quantize the activations, if the scheme does; devices below it load the weights and
    leave activations in 16 bits."""
    seen: bool = False
    """Whether it was loaded here on a CPU."""

    def loads(self, place: ServerOnDevice) -> bool:
        """Whether the server loads the scheme there."""
        if place.capability is None:
            return self.cpu == "any" or (self.cpu == "amx" and place.amx)
        return self.gpu is not None and self.gpu <= place.capability < (self.below or 10_000)

    def where(self) -> str:
        """The devices in words: `GPU from 7.5 to below 10.0, x86 CPU`."""
        words = []
        if self.gpu is not None:
            words.append(
                "any GPU"
                if self.gpu == ANY_GPU
                else f"GPU from {_shown(self.gpu)}" + (f" to below {_shown(self.below)}" if self.below else "")
            )
        words += {"any": ["x86 CPU"], "amx": ["x86 CPU with AMX"], None: []}[self.cpu]
        return ", ".join(words) or "nowhere"


@dataclass(frozen=True)
class ServerOnDevice:
    """A server on a device."""

    server: str
    device: str
    capability: int | None
    """Compute capability of an NVIDIA device, times ten; None for an x86 CPU."""
    amx: bool = False
    """Whether the CPU has AMX tiles."""

    def __str__(self) -> str:
        return f"{self.server}/{self.device}"


_WNA16 = Support(75, f"vllm: {_CT}wNa16.py; on CPUs CPUWNA16LinearKernel (widths: multiples of 32)", "any", seen=True)
_SGLANG_WNA16 = Support(80, f"sglang: {_CT}wNa16.py; SGLang's check of the capability needs CUDA, so no CPU")
_TRANSFORMERS = Support(
    ANY_GPU, "transformers: quantizers/quantizer_compressed_tensors.py, products of floats", "any", seen=True
)

SUPPORT: dict[str, dict[str, Support]] = {
    "w8a8": {
        "vllm": Support(75, f"vllm: {_CT}w8a8_int8.py; documentation int8_w8a8: no int8 from 10.0", "any", 100, seen=True),
        "sglang": Support(
            80,
            f"sglang: {_CT}w8a8_int8.py, and int8_scaled_mm of sgl-kernel, which ends at 9.0; on CPUs --quantization w8a8_int8",
            "amx",
            100,
        ),
        "transformers": _TRANSFORMERS,
    },
    "w4a16": {"vllm": _WNA16, "sglang": _SGLANG_WNA16, "transformers": _TRANSFORMERS},
    "w4a16_g64": {"vllm": _WNA16, "sglang": _SGLANG_WNA16, "transformers": _TRANSFORMERS},
    "w4a16_g32": {"vllm": _WNA16, "sglang": _SGLANG_WNA16, "transformers": _TRANSFORMERS},
    "fp8": {
        "vllm": Support(
            75,
            f"vllm: {_CT}w8a8_fp8.py and w8a16_fp8.py (Marlin); on CPUs ChannelWiseTorchFP8...Kernel",
            "any",
            activations_from=89,
            seen=True,
        ),
        "sglang": Support(80, f"sglang: {_CT}w8a8_fp8.py and w8a16_fp8.py (Marlin)", activations_from=89),
        "transformers": _TRANSFORMERS,
    },
    "fp8_block": {
        "vllm": Support(
            75,
            f"vllm: {_CT}w8a8_fp8.py and w8a16_fp8.py (Marlin); on CPUs CPUFp8W8A8BlockScaledMMKernel",
            "amx",
            activations_from=89,
        ),
        "sglang": Support(89, f"sglang: {_CT}w8a8_fp8.py; its weight-only path has no blocks"),
        "transformers": _TRANSFORMERS,
    },
    "w8a16": {
        "vllm": Support(75, f"vllm: {_CT}wNa16.py (Marlin: uint8b128); CPUWNA16LinearKernel takes 4 bits only"),
        "sglang": _SGLANG_WNA16,
        "transformers": _TRANSFORMERS,
    },
    "w8a16_channel": {
        "vllm": Support(75, f"vllm: {_CT}wNa16.py (Marlin: uint8b128); CPUWNA16LinearKernel takes 4 bits only"),
        "sglang": _SGLANG_WNA16,
        "transformers": _TRANSFORMERS,
    },
}
"""Scheme -> server -> support. A server that is not named does not load the scheme."""


CACHE = {
    "vllm": Support(
        89,
        "vllm: attention/attention.py (a kv_cache_scheme sets fp8), kv_cache.py; on CPUs v1/attention/backends/"
        "cpu_attn.py, which needs AVX-512",
        "any",
        seen=True,
    ),
    "sglang": Support(89, "sglang: compressed_tensors/compressed_tensors.py (CompressedTensorsKVCacheMethod)"),
    "transformers": Support(ANY_GPU, "transformers: compressed_tensors' modeling/kvcache.py, in floats", "any", seen=True),
}
"""Server -> where it stores keys and values as float8 e4m3 with calibrated scales (`quantize.kv_cache: fp8`)."""


def parse_place(text: str) -> ServerOnDevice:
    """`SERVER/DEVICE`: vllm/cpu, vllm/cpu-amx, sglang/h100, vllm/sm80. Raises PlaceError."""
    server, _, device = text.strip().lower().partition("/")
    if server not in (*SERVERS, LLAMA_CPP) or not device:
        known = ", ".join((*SERVERS, LLAMA_CPP))
        raise PlaceError(
            f"{text!r} is no server and device: give one of {known}, a slash, and cpu, cpu-amx, a device such as "
            "h100, or sm and a compute capability such as sm80"
        )
    if device in ("cpu", "cpu-amx"):
        return ServerOnDevice(server, device, None, device == "cpu-amx")
    if numbered := re.fullmatch(r"sm_?(\d{2,3})", device):
        return ServerOnDevice(server, f"sm{numbered[1]}", int(numbered[1]))
    listed = DEVICES.get(ALSO_CALLED.get(device, device))
    if listed is None or listed.capability is None:
        names = ", ".join(each.name.lower() for each in DEVICES.values() if each.capability is not None)
        raise PlaceError(
            f"{text!r} names no device whose compute capability is known here: give cpu, cpu-amx, smNN (sm80: "
            f"compute capability 8.0), or one of {names}"
        )
    return ServerOnDevice(server, listed.name.lower(), listed.capability)


def keeps_activations(scheme: str, place: ServerOnDevice) -> bool:
    """Whether the place leaves activations in 16 bits that the scheme quantizes: it computes another function than the
    evaluation measures, a more exact one."""
    support = SUPPORT[scheme].get(place.server)
    return support is not None and place.capability is not None and place.capability < (support.activations_from or 0)


def loadable(place: ServerOnDevice) -> list[str]:
    """The schemes that the place loads, in the order of the table."""
    return [scheme for scheme, servers in SUPPORT.items() if place.server in servers and servers[place.server].loads(place)]


def why_not(scheme: str, place: ServerOnDevice) -> str | None:
    """One sentence if the place does not load the scheme, with what it loads and who loads the scheme; None if it does."""
    servers = SUPPORT[scheme]
    if place.server in servers and servers[place.server].loads(place):
        return None
    others = "; ".join(f"{server} on {support.where()}" for server, support in servers.items() if support.where() != "nowhere")
    choice = loadable(place)
    remedy = (
        f"choose {' or '.join([', '.join(choice[:-1]), choice[-1]] if choice[1:] else choice)}"
        if choice
        else ("it loads none of the schemes")
    )
    return f"{place} does not load scheme {scheme}: {remedy} ({scheme} is loaded by {others})"


def cache_why_not(place: ServerOnDevice) -> str | None:
    """One sentence if the place has no FP8 key-value cache; None if it has."""
    if place.server in CACHE and CACHE[place.server].loads(place):
        return None
    others = "; ".join(f"{server} on {support.where()}" for server, support in CACHE.items())
    return f"{place} has no FP8 cache of keys and values: leave quantize.kv_cache out (it is read by {others})"


def markdown() -> str:
    """The table of docs/quantization.md."""
    lines = [
        f"| `scheme` | {' | '.join(f'{server} {VERSIONS[server]}' for server in SERVERS)} |",
        "|---" * (len(SERVERS) + 1) + "|",
    ]
    for scheme, servers in SUPPORT.items():
        lines.append(f"| `{scheme}` | {' | '.join(_cell(servers.get(server)) for server in SERVERS)} |")
    lines.append(f"| `kv_cache: fp8` | {' | '.join(_cell(CACHE.get(server)) for server in SERVERS)} |")
    return "\n".join(lines) + "\n"


def _cell(support: Support | None) -> str:
    if support is None:
        return "no"
    weights_only = f"; 16-bit activations below {_shown(support.activations_from)}" if support.activations_from else ""
    return support.where() + weights_only + (" ✓" if support.seen else "")


def _shown(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


if __name__ == "__main__":
    print(markdown(), end="")
