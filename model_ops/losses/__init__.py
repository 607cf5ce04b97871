"""The language-model head and its cross entropy without holding all logits: in chunks, or sharded over the vocabulary.

Objectives combine these; no objective is defined here. Start with `linear_cross_entropy.py`, then `head.py` (the head that
it multiplies with). `vocabulary_shards.py` is the form for tensor parallelism.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.losses import head
    from model_ops.losses.head import Head, RowsLoss, add_product, chunked_head, chunked_rows, products
    from model_ops.losses.linear_cross_entropy import cross_entropy_rows, label_log_probs, last_hidden, token_nll
    from model_ops.losses.vocabulary_shards import VocabularyShard, local_head

__getattr__, __dir__, __all__ = door(__name__, __file__)
