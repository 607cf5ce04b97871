"""Everything below a model: batches of aligned token streams, the interface of a loss, and fused kernels for rows of
activations.

Start with `batch.py` and `loss.py`: training, objectives and drafters agree on these two. `fused_rows.py` computes norms, gates
and cross entropy in one pass on a CPU, with kernels from `row_kernels.py`; `memory_efficient_layers.py` puts them into a model.
`rounding.py` rounds trained weights for a file. `torch_internals.py` is the only file that uses private names of torch, with
the reason for each.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.tensors import fused_rows, torch_internals, varlen_kernel
    from model_ops.tensors.batch import IGNORED, AnyBatch, Batch, BatchSource, KindOfBatch, StatefulSource
    from model_ops.tensors.loss import LearningLoss, Loss, LossOfTerms, LossOutput, Mean, one_term
    from model_ops.tensors.memory_efficient_layers import rms_norm, use_memory_efficient_layers
    from model_ops.tensors.rounding import rounded, saved_update
    from model_ops.tensors.varlen_kernel import Boundaries, same_dtype, takes_varlen_kernel, varlen_backward, varlen_forward

__getattr__, __dir__, __all__ = door(__name__, __file__)
