"""Deterministic kernels on CUDA, so that two runs of the same steps end with the same weights, bit for bit.

    with deterministic_kernels(settings.deterministic, device):
        ...

By default some CUDA kernels add in the order in which threads happen to finish (gradients of flash attention, of embeddings and
of gathered rows), so a repeated or continued run differs in rounding. On a CPU this does nothing: runs repeat there anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from model_ops.errors import ModelError


@contextmanager
def deterministic_kernels(wanted: bool, device: torch.device) -> Iterator[None]:
    """Makes torch use deterministic kernels inside the block, on CUDA. Raises ModelError with the operation's name if one has
    no deterministic kernel. cuBLAS also needs CUBLAS_WORKSPACE_CONFIG, which model_ops.torch_environment sets."""
    if not wanted or device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0] if str(error) else ""
        if "deterministic" not in said:
            raise
        raise ModelError(f"this model needs an operation without a deterministic kernel ({said}); set deterministic: false"
                         ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
