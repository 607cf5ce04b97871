"""A model that thinks too long learns to close its reasoning at a budget; what cannot be closed is refused."""

import string

import pytest
import torch
from pydantic import ValidationError
from tiny_chats import conversation, write_rows

from model_ops.jobs import Job, ModelError, Progress
from model_ops.models.model_directory import load_model, load_tokenizer, save_model
from model_ops.operations import sft
from model_ops.operations.sft_settings import SecondSftSettings, SftSettings
from model_ops.operations.tiny_base import new_model, train_tokenizer
from model_ops.operations.tiny_base_settings import TinyBaseSettings

SETTINGS = {"steps": 60, "learning_rate": 1e-2, "tokens_per_step": 1024, "max_length": 128}
BUDGET = 20
LONGEST = 90


def trained(folder, model, output, **settings):
    job = Job(
        operation="sft",
        output=folder / output,
        inputs={"model": folder / model, "dataset": folder / "rows"},
        settings={**SETTINGS, **settings},
    )
    return sft.run(job, Progress())


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A folder with the model `long`, whose reasoning has 78 tokens, and the rows that taught it."""
    folder = tmp_path_factory.mktemp("thinker")
    size = TinyBaseSettings(
        vocab_size=512, hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp_size=64, max_position_embeddings=256
    )
    tokenizer = train_tokenizer(["red blue green done go\n" * 40], size)
    tokenizer.add_tokens(["<think>", "</think>"])
    save_model(new_model(size, tokenizer), tokenizer, folder / "base")
    thought = f"<think>{' '.join(string.ascii_letters[:40])}</think> done"
    rows = [[{"role": "user", "content": f"go {i}"}, {"role": "assistant", "content": thought}] for i in range(24)]
    write_rows(folder / "rows", "train", rows)
    trained(folder, "base", "long")
    return folder


def reasoning_tokens(directory, question):
    """Tokens up to the closing mark in the likeliest answer; LONGEST without one."""
    model, tokenizer = load_model(directory), load_tokenizer(directory)
    text = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False)
    ids = tokenizer.encode(text + "<think>", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids("</think>")
    for length in range(LONGEST):
        with torch.no_grad():
            ids.append(int(model(torch.tensor(ids)[None], use_cache=False).logits[0, -1].argmax()))
        if ids[-1] == end:
            return length
    return LONGEST


def test_a_model_that_thinks_too_long_closes_its_reasoning_at_about_the_budget(thinker):
    metrics = trained(thinker, "long", "short", steps=24, learning_rate=4e-4, reasoning_budget=BUDGET)
    assert (metrics["closed_answers"], metrics["reasoning_answers"], metrics["longest_reasoning"]) == (24, 24, 78)
    assert metrics["target_tokens"] == 2 * 24
    questions = ["go 3", "go 17", "go 31"]
    assert all(reasoning_tokens(thinker / "long", question) > 3 * BUDGET for question in questions)
    assert all(BUDGET / 2 <= reasoning_tokens(thinker / "short", question) <= BUDGET * 1.5 for question in questions)


def test_a_budget_that_no_reasoning_exceeds_is_refused_with_the_longest(thinker):
    with pytest.raises(ModelError, match=r"longest reasoning of 24 answers has 78 tokens.* set it below 78"):
        trained(thinker, "long", "none", reasoning_budget=78)


def test_rows_without_reasoning_are_refused(thinker, tiny_model, chats, tmp_path):
    """The house's template writes no reasoning, and these answers have none of their own."""
    settings = {**SETTINGS, "reasoning_budget": 8}
    job = Job(operation="sft", output=tmp_path, inputs={"model": tiny_model, "dataset": chats}, settings=settings)
    with pytest.raises(ModelError, match=r"none of 40 training rows .* a model whose chat template has marks"):
        sft.run(job, Progress())


def test_validation_rows_are_learnt_whole(thinker, tmp_path):
    """Their loss says what else the stage changed."""
    write_rows(thinker / "rows", "validation", [conversation(1)])
    metrics = trained(thinker, "long", "checked", steps=1, reasoning_budget=BUDGET)
    (thinker / "rows" / "validation.parquet").unlink()
    assert metrics["validation_loss"] > 0


def test_a_budget_that_leaves_no_room_for_the_closing_mark_is_refused():
    for settings in (SftSettings, SecondSftSettings):
        with pytest.raises(ValidationError, match="reasoning_budget 2048 and the closing mark do not fit into max_length 2048"):
            settings(preset="quick", reasoning_budget=2048)
        assert settings(preset="quick", reasoning_budget=2047).resolved().reasoning_budget == 2047
    assert SftSettings(preset="quick").resolved().reasoning_budget is None
