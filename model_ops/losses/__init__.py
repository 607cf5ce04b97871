"""The language-model head and its cross entropy without holding all logits: in chunks, or sharded over the vocabulary.
Objectives combine these. Start with `linear_cross_entropy.py`, then `head.py`."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.losses import head
    from model_ops.losses.head import Head, RowsLoss, add_product, chunked_head, chunked_rows, products
    from model_ops.losses.linear_cross_entropy import (
        VocabularyShard,
        cross_entropy_rows,
        label_log_probs,
        last_hidden,
        local_head,
        token_nll,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
