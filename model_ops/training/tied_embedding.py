"""The gradient of an embedding that is also the head: the head's part is dense, the rows that were looked up are few.

    with few_rows_added(model, world):
        ...                                # training steps

torch would make a second dense gradient of [vocab, hidden] for the lookup, zeros almost everywhere, only to add it to
the head's: at a vocabulary of 151,936 a quarter of a small model's memory. Asked for a sparse one, it adds the rows that
were looked up to the head's gradient in place. The sum is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from model_ops.parallel.world import World


@contextmanager
def few_rows_added(model: nn.Module, world: World) -> Iterator[None]:
    """Within it a tied embedding's lookups have sparse gradients. Cut models, and untied ones, stay as they are."""
    embedding = _tied_embedding(model) if world.mesh is None else None
    if embedding is None:
        yield
        return
    embedding.sparse = True
    try:
        yield
    finally:
        embedding.sparse = False


def _tied_embedding(model: nn.Module) -> nn.Embedding | None:
    if not hasattr(model, "get_output_embeddings"):
        return None
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    plain = isinstance(embedding, nn.Embedding) and embedding.max_norm is None and not embedding.scale_grad_by_freq
    tied = plain and head is not None and getattr(head, "weight", None) is embedding.weight
    return embedding if tied and embedding.weight.requires_grad and not embedding.sparse else None
