"""Contexts of a row that begin alike: joined documents give the losses and gradients of the separate ones, for every family."""

import architectures
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.documents.conversations import FEWEST_SHARED, join_contexts
from model_ops.documents.documents import Document, Documents, to_batch
from model_ops.families.table import PACKED
from model_ops.jobs import ModelError
from model_ops.models.attention import path_lengths
from model_ops.models.isolation import separate_documents
from model_ops.objectives.sft import next_token_loss
from tests.thorough_cases import thorough_except

VOCABULARY = 61


def contexts(row="row", answers=3, beginning=30, seed=0, repeats=True):
    """Contexts as a template renders them that drops earlier reasoning: each holds the earlier answers, and learns its own."""
    generator = np.random.default_rng(seed)

    def some(tokens):
        return generator.integers(3, VOCABULARY, tokens, dtype=np.int32)

    said, found = some(beginning), []
    for _ in range(answers):
        thought, answer = some(int(generator.integers(2, 9))), some(int(generator.integers(3, 12)))
        ids = np.concatenate([said, thought, answer])
        found.append(Document(row, ids, np.arange(len(ids)) >= len(said)))
        said = np.concatenate([said, answer, some(int(generator.integers(2, 7)))])
    return found


def paths(document):
    """The documents that a joined document stands for, as (tokens, targets)."""
    found, start = [], 0
    trunk = document.segments[0].length
    for at, length in document.segments:
        own = slice(start, start + length)
        found.append(
            (
                np.concatenate([document.input_ids[:trunk][:at], document.input_ids[own]]).tolist(),
                [*[False] * at, *document.targets[own].tolist()],
            )
        )
        start += length
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 60), st.integers(0, 9), st.integers(40, 300))
def test_joined_documents_hold_every_context_once(answers, beginning, seed, most):
    separate = contexts("a", answers, beginning, seed) + contexts("b", 2, beginning, seed + 1)
    joined = list(join_contexts(separate, most))
    wanted = sorted((document.row_id, document.input_ids.tolist(), document.targets.tolist()) for document in separate)
    assert sorted((document.row_id, *path) for document in joined for path in paths(document)) == wanted
    assert sum(document.target_tokens for document in joined) == sum(document.target_tokens for document in separate)
    for document in joined:
        assert len(document) <= most or not document.branches
        assert all(branch.at >= FEWEST_SHARED and branch.length > 1 for branch in document.branches)
    assert sum(map(len, joined)) <= sum(map(len, separate))


def test_a_conversation_of_many_answers_costs_little_more_than_one():
    separate = contexts(answers=12, beginning=200)
    [joined] = join_contexts(separate, 4_096)
    assert len(joined) < 0.3 * sum(map(len, separate))


def test_documents_keep_their_branches():
    joined = list(join_contexts(contexts("a") + contexts("b", answers=1) + contexts("c", seed=3), 4_096))
    kept = Documents.gather(iter(joined))
    assert [document.branches for document in kept] == [document.branches for document in joined]
    assert kept.target_tokens.tolist() == [document.target_tokens for document in joined]
    assert not joined[1].branches and joined[2].branches


def losses_and_gradients(model, documents, monkeypatch=None):
    model.zero_grad()
    batch = to_batch(documents)
    output = next_token_loss(model, batch)
    total = next(iter(output.terms.values()))
    total.sum.backward()
    return [
        total.sum.detach(),
        *(p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()),
    ], total.count


@pytest.mark.parametrize("name", thorough_except(["qwen3", "gemma2", "gpt_oss"], PACKED))
def test_losses_and_gradients_are_those_of_separate_contexts(name):
    model = architectures.build(name)
    separate = contexts("a", 3) + contexts("b", 1, seed=1) + contexts("c", 4, 17, seed=2)
    joined = list(join_contexts(separate, 400))
    assert len(joined) == 3 and sum(map(len, joined)) < 0.7 * sum(map(len, separate))
    (wanted, count), (found, same) = (losses_and_gradients(model, documents) for documents in (separate, joined))
    assert count == same
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4 * max(1e-6, float(other.abs().max())))


def test_the_path_of_an_accelerator_gives_the_same(monkeypatch):
    """CUDA's kernel takes the paths end to end; here a reference stands in for it."""
    from model_ops.models import attention

    model, documents = architectures.build("qwen3"), list(join_contexts(contexts(answers=4), 400))
    wanted, _ = losses_and_gradients(model, documents)
    seen = []

    def reference(query, key, value, lengths, scaling, window, sinks):
        seen.append(lengths)
        parts = [stream.split(lengths) for stream in (query, key, value)]
        return torch.cat(
            [
                attention._attend(*(part.transpose(0, 1)[None] for part in of_document), scaling, 0.0)[0].transpose(0, 1)
                for of_document in zip(*parts, strict=True)
            ]
        )

    monkeypatch.setattr(attention, "takes_varlen_kernel", lambda *_: True)
    monkeypatch.setattr(attention, "varlen_attention", reference)
    found, _ = losses_and_gradients(model, documents)
    batch = to_batch(documents)
    assert seen and seen[0] == path_lengths(batch.document_lengths, batch.document_prefixes)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1e-6, float(other.abs().max())))


def test_a_model_with_a_state_refuses_documents_that_continue_others():
    model = architectures.build("lfm2")
    separate_documents(model)
    with pytest.raises(ModelError, match="cannot continue another"):
        next_token_loss(model, to_batch(list(join_contexts(contexts(), 400))))
