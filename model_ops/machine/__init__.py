"""This machine: known accelerators, the fastest precision of matrix products, compiled kernels, memory and the end of a
process. Nothing here knows models. Start with `devices.py` and `precision.py` (`python -m model_ops.machine.precision` prints
its measurements)."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.machine import device_rates, precision
    from model_ops.machine.backoff import Backoff, pause_after
    from model_ops.machine.compilation import compiled, compiled_arithmetic
    from model_ops.machine.device_rates import DeviceRates, rates_of
    from model_ops.machine.devices import ALSO_CALLED, DEVICES, DRIVER_NAMES, Device, parse_devices, peak_bf16_flops
    from model_ops.machine.precision import (
        AUTO,
        Concrete,
        Precision,
        cached_measurement,
        concrete,
        concrete_precision,
        cpu_speeds,
        faster_on,
        measured_apart,
        products_dtype,
        products_in,
    )
    from model_ops.machine.process import (
        end_process,
        free_device_memory,
        give_back_memory,
        keep_freed_memory,
        pipe_of,
        set_torch_environment,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
