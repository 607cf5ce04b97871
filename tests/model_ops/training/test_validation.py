"""Validation during training: its cost is bounded by the run's own length, and processes share it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import write_target

from model_ops.documents.documents import Document
from model_ops.documents.likelihood import held_out_loss, held_out_totals, mean_loss
from model_ops.models.model_directory import load_model
from model_ops.operations.sft_settings import SftSettings
from model_ops.parallel.world import World
from model_ops.training.settings import MOST_VALIDATION_TOKENS, first_documents, plan_validation


@given(st.integers(1, 100_000), st.integers(64, 1_000_000))
def test_validations_together_read_at_most_a_tenth_of_the_trained_tokens(steps, tokens_per_step):
    plan = plan_validation(steps, SftSettings(tokens_per_step=tokens_per_step).resolved())
    times = math.ceil(steps / plan.every)
    assert 1 <= times <= 4 and 1 <= plan.tokens <= MOST_VALIDATION_TOKENS
    assert times * plan.tokens <= max(1, 0.1 * steps * tokens_per_step)


def test_a_long_run_validates_four_times_and_a_short_one_once_on_little():
    long = plan_validation(1_000, SftSettings(tokens_per_step=65_536).resolved())
    short = plan_validation(15, SftSettings(tokens_per_step=2_048).resolved())
    assert (long.tokens, long.every) == (50_000, 250)
    assert (short.tokens, short.every) == (3_072, 15)
    given = plan_validation(15, SftSettings(tokens_per_step=2_048, validation_tokens=20_000).resolved())
    assert (given.tokens, given.every) == (20_000, 4)


def documents(lengths):
    rng = np.random.default_rng(0)
    return [
        Document(f"row-{place}", rng.integers(3, 90, length).astype(np.int32), rng.random(length) < 0.5)
        for place, length in enumerate(lengths)
    ]


def test_the_first_documents_up_to_a_number_of_tokens():
    rows = documents([10, 20, 30, 1])
    assert [row.row_id for row in first_documents(rows, 35)] == ["row-0", "row-1"]
    assert [row.row_id for row in first_documents(rows, 3)] == ["row-0"]
    assert [row.row_id for row in first_documents(rows, 3, least=2)] == ["row-0", "row-1"]
    assert first_documents([], 3) == []


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    write_target(place, layers=2)
    return load_model(place, attention="packed")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes_share_the_documents_and_make_the_same_number_of_forward_passes(model, ranks):
    rows = documents([12, 30, 35, 20, 38, 9, 25])
    whole = held_out_loss(model, rows, batch_tokens=40)
    passes, found = [], []
    for rank in range(ranks):
        calls = []
        body = model.model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        found.append(held_out_totals(model, rows, World(torch.device("cpu"), rank, ranks, rank, ranks), batch_tokens=40))
        body.remove()
        passes.append(len(calls))
    assert len(set(passes)) == 1 and passes[0] > 0
    assert sum(tokens for _, tokens in found) == sum(row.tokens for row in whole)
    assert sum(nll for nll, _ in found) == pytest.approx(mean_loss(whole) * sum(row.tokens for row in whole), rel=1e-5)
    assert ranks == 1 or all(0 < tokens < sum(row.tokens for row in whole) for _, tokens in found)
