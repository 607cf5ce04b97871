"""Everything below a model: batches of aligned token streams, the interface of a loss (`batch.py`), and fused kernels for rows
of activations (`fused_rows.py`, `memory_efficient_layers.py`). Only `torch_internals.py` uses private names of torch."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.tensors import fused_rows, torch_internals, varlen_kernel
    from model_ops.tensors.batch import (
        IGNORED,
        AnyBatch,
        Batch,
        BatchSource,
        KindOfBatch,
        LearningLoss,
        Loss,
        LossOfTerms,
        LossOutput,
        Mean,
        StatefulSource,
        one_term,
    )
    from model_ops.tensors.memory_efficient_layers import rms_norm, use_memory_efficient_layers
    from model_ops.tensors.rounding import round_weight, saved_update
    from model_ops.tensors.varlen_kernel import Boundaries, same_dtype, takes_varlen_kernel, varlen_backward, varlen_forward

__getattr__, __dir__, __all__ = door(__name__, __file__)
