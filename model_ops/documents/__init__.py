"""From rows of a dataset to batches: rendered conversations become tokenized documents with supervised positions, and documents
are packed into rows of equal length. Start with `documents.py`, then `likelihood.py` and `packing.py`."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.documents.bin_packing import WORK, pack
    from model_ops.documents.conversations import RefusedRows, TokenizeCounts, read_documents, tokenize
    from model_ops.documents.documents import Branch, Document, Documents, first_difference, lengths_and_targets, to_batch
    from model_ops.documents.likelihood import (
        Chats,
        RowLoss,
        context_of,
        held_out_loss,
        joined_tokens,
        mean_loss,
        read_chats,
        validation_documents,
        validation_of,
    )
    from model_ops.documents.new_rows import rows_to_learn
    from model_ops.documents.packing import MICRO_BATCH_TOKENS, PackedPlan, PackedRows, share, to_batches
    from model_ops.documents.packing_kernels import fill_rows

__getattr__, __dir__, __all__ = door(__name__, __file__)
