"""Saves memory in the gradient of a tied embedding by using sparse gradients for the lookup.

    with sparse_lookup_gradients(model, world):
        ...                                # training steps

By default torch makes a second dense gradient [vocab, hidden] for the lookup, almost all zeros, and adds it to the head's
gradient; with a vocabulary of 151,936 that is a quarter of a small model's memory. With a sparse gradient, torch adds only the
rows that were looked up, in place. The sum is the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from model_ops.parallel import World


@contextmanager
def sparse_lookup_gradients(model: nn.Module, world: World) -> Iterator[None]:
    """Context manager: lookups of a tied embedding have sparse gradients. Does nothing for sharded or untied models."""
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
