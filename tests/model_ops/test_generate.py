"""Operation generate: turns are asked as they were served, answers are the target's, kills cost little."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_models import write_dataset, write_target

from model_ops.completions import answerers
from model_ops.completions.answerers import CompletionTokens
from model_ops.completions.served_answers import COLUMNS
from model_ops.completions.turns import _said
from model_ops.decoding.decode_loop import decode
from model_ops.decoding.target import load_runner
from model_ops.files.digests import target_digest, vocabulary_digest
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import end_of_text_ids, load_tokenizer
from model_ops.operations.generate import run
from model_ops.operations.limit_rows import ANSWER_ROWS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("generate")
    write_target(root / "target")
    write_dataset(root / "dataset", rows=20)
    return root


def job(place, output, **settings):
    return Job(
        operation="generate",
        output=output,
        inputs={"target": place / "target", "dataset": place / "dataset"},
        settings={"max_new_tokens": 12, "batch_size": 4, **settings},
    )


def by_turn(path):
    return {(row["row_id"], row["turn"]): row for row in pq.read_table(path).to_pylist()}


def test_every_turn_is_answered_by_the_target(place, tmp_path):
    metrics = run(job(place, tmp_path, temperature=0), Progress())
    assert metrics["train_rows"] == 20 + 7 and metrics["validation_rows"] == 5 + 2 and metrics["train_served_rows"] == 0
    table = pq.read_table(tmp_path / "train.parquet")
    assert table.schema.equals(ANSWER_ROWS)
    metadata = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    assert metadata == {
        "target_digest": target_digest(place / "target"),
        "vocabulary_digest": vocabulary_digest(place / "target"),
    }
    rows = by_turn(tmp_path / "train.parquet")
    tokenizer = load_tokenizer(place / "target")
    source = {row["row_id"]: row for row in pq.read_table(place / "dataset" / "train.parquet").to_pylist()}
    runner, eos_ids = load_runner(place / "target"), end_of_text_ids(place / "target")
    for row_id in ("train-3", "train-4"):
        messages = json.loads(source[row_id]["messages"])
        text = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
        row = rows[row_id, 0]
        assert tokenizer.decode(row["prompt_token_ids"]) == text
        (answer,) = decode(runner, [row["prompt_token_ids"]], [row_id], eos_ids=eos_ids, temperature=0, max_new_tokens=12)
        assert row["answer_token_ids"] == answer.tokens and row["finish_reason"] == answer.finish_reason
        assert row["session_id"] == source[row_id]["session_id"] and row["origin"] == "generated"
        assert row["prompt_shape"] == source[row_id]["prompt_shape"]
    ended = [row for row in rows.values() if row["finish_reason"] == "stop"]
    assert all(row["answer_token_ids"][-1] in eos_ids for row in ended)
    assert all(len(row["answer_token_ids"]) == 12 for row in rows.values() if row["finish_reason"] == "length")


def test_the_targets_own_answers_stand_in_the_history_of_later_turns(place, tmp_path, monkeypatch):
    """Each turn's prompt is what a server would be sent, unless the answer was cut or the log called a tool there."""
    answer_id = {}

    def answer(self, asked):
        found = []
        for each in asked:
            tokens = load_tokenizer(place / "target")(f"mine {each.name}")["input_ids"]
            answer_id[each.name] = tokens
            cut = each.name == "cut#0"
            found.append(
                CompletionTokens(
                    tokens if cut else [*tokens, next(iter(end_of_text_ids(place / "target")))], "length" if cut else "stop"
                )
            )
        return found

    monkeypatch.setattr(answerers.OwnGenerator, "answer", answer)
    call = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    chats = {
        "own": [("user", "a"), ("assistant", "logged"), ("user", "b"), ("assistant", "logged too"), ("user", "c")],
        "cut": [("user", "a"), ("assistant", "logged"), ("user", "b"), ("assistant", "x")],
        "tool": [("user", "a"), ("assistant", "logged", {"tool_calls": call}), ("tool", "4"), ("assistant", "x")],
        "dropped": [("user", "a"), ("assistant", "logged", {"weight": 0}), ("user", "b"), ("assistant", "x")],
    }
    rows = [
        {
            "row_id": name,
            "tools": None,
            "messages": json.dumps(
                [{"role": each[0], "content": each[1], **(each[2] if len(each) > 2 else {})} for each in chat]
            ),
        }
        for name, chat in chats.items()
    ]
    (tmp_path / "dataset").mkdir()
    pq.write_table(
        pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.string()) for name in rows[0]])),
        tmp_path / "dataset" / "train.parquet",
    )
    run(
        Job(
            operation="generate", output=tmp_path / "out", inputs={"target": place / "target", "dataset": tmp_path / "dataset"}
        ),
        Progress(),
    )
    tokenizer = load_tokenizer(place / "target")
    prompts = {key: tokenizer.decode(row["prompt_token_ids"]) for key, row in by_turn(tmp_path / "out/train.parquet").items()}
    assert sorted(prompts) == [
        ("cut", 0),
        ("cut", 1),
        ("dropped", 0),
        ("own", 0),
        ("own", 1),
        ("own", 2),
        ("tool", 0),
        ("tool", 1),
    ]
    assert "mine own#0" in prompts["own", 1] and "logged" not in prompts["own", 1]
    assert "mine own#0" in prompts["own", 2] and "mine own#1" in prompts["own", 2] and "logged" not in prompts["own", 2]
    assert "logged" in prompts["cut", 1] and "logged" in prompts["tool", 1] and "logged" in prompts["dropped", 0]


@pytest.mark.parametrize(
    ("mine", "thought", "content"),
    [("<think>\nmine\n</think>\n\nsaid", "mine", "said"), ("mine\n</think>\n\nsaid", "mine", "said"), ("said", None, "said")],
)
def test_the_targets_thoughts_stand_where_the_log_has_its_own(mine, thought, content):
    """A logged thought never stands beside another answer's text, and what was thought is no content."""
    logged = {"role": "assistant", "content": "logged", "reasoning_content": "logged thought", "weight": 1}
    said = _said(logged, mine)
    assert said.get("reasoning_content") == thought and said["content"] == content and said["weight"] == 1
    plain = {"role": "assistant", "content": "logged"}
    assert _said(plain, mine) == {"role": "assistant", "content": mine}, "the template deals with thoughts in the content"


def test_requests_are_sampled_as_they_were_served(place, tmp_path, monkeypatch):
    seen = {}
    whole = decode

    def recording(runner, prompts, names, **how):
        seen.update(dict.fromkeys(names, (how["temperature"], how["truncation"].top_p)))
        return whole(runner, prompts, names, **how)

    monkeypatch.setattr(answerers, "decode", recording)
    source = pq.read_table(place / "dataset" / "train.parquet")
    turns = [sum(message["role"] == "assistant" for message in json.loads(text)) for text in source["messages"].to_pylist()]
    ids = [[f"{row}-{turn}" for turn in range(count)] for row, count in zip(source["row_id"].to_pylist(), turns, strict=True)]
    (tmp_path / "dataset").mkdir()
    pq.write_table(source.append_column("interaction_ids", pa.array(ids)), tmp_path / "dataset" / "train.parquet")
    eos = next(iter(end_of_text_ids(place / "target")))
    digest = target_digest(place / "target")
    served = [
        {"interaction_id": "train-0-0", "params": '{"temperature": 0.5, "top_p": 0.9, "seed": 4}'},
        {"interaction_id": "train-0-1", "params": '{"temperature": 0, "max_tokens": 3}'},
        {"interaction_id": "train-1-0", "params": '{"presence_penalty": 1.5, "logit_bias": {"7": 1}}'},
        {
            "interaction_id": "train-2-0",
            "params": "{}",
            "served_model_digest": digest,
            "prompt_token_ids": [5, 6, 7],
            "completion_token_ids": [8, 9, eos],
            "finish_reason": "stop",
        },
        {
            "interaction_id": "train-3-0",
            "params": "{}",
            "served_model_digest": "0" * 64,
            "prompt_token_ids": [5, 6, 7],
            "completion_token_ids": [8, 9, eos],
            "finish_reason": "stop",
        },
        {
            "interaction_id": "train-4-0",
            "params": '{"temperature": 0.3}',
            "model": "mine",
            "prompt_token_ids": [5, 6],
            "completion_token_ids": [8],
            "finish_reason": "length",
        },
    ]
    types = {"prompt_token_ids": pa.list_(pa.int32()), "completion_token_ids": pa.list_(pa.int32())}
    pq.write_table(
        pa.Table.from_pylist(served, schema=pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])),
        tmp_path / "served.parquet",
    )
    metrics = run(
        Job(
            operation="generate",
            output=tmp_path / "out",
            settings={"max_new_tokens": 6, "served_as": ["mine"]},
            inputs={"target": place / "target", "dataset": tmp_path / "dataset", "served": tmp_path},
        ),
        Progress(),
    )
    rows = by_turn(tmp_path / "out" / "train.parquet")
    assert seen["train-0#0"] == (0.5, 0.9) and seen["train-0#1"] == (0.0, 1.0) and seen["train-5#0"] == (1.0, 1.0)
    assert json.loads(rows["train-0", 0]["sampling"]) == {"temperature": 0.5, "top_p": 0.9}
    assert len(rows["train-0", 1]["answer_token_ids"]) <= 3
    assert ("train-1", 0) not in rows and metrics["prompts_refused"] == {"logit_bias": 1}
    assert rows["train-2", 0]["prompt_token_ids"] == [5, 6, 7] and rows["train-2", 0]["answer_token_ids"] == [8, 9, eos]
    assert rows["train-3", 0]["origin"] == "generated" and rows["train-3", 0]["prompt_token_ids"] != [5, 6, 7]
    assert rows["train-4", 0]["origin"] == "served" and rows["train-4", 0]["temperature"] == 0.3
    assert metrics["train_served_rows"] == 2 and metrics["temperatures"]["0.5"] == 1
    strange = pa.Table.from_pylist(
        [
            {**row, "completion_token_ids": row["completion_token_ids"] and [400]}
            for row in pq.read_table(tmp_path / "served.parquet").to_pylist()
        ],
        schema=pq.read_schema(tmp_path / "served.parquet"),
    )
    (tmp_path / "strange").mkdir()
    pq.write_table(strange, tmp_path / "strange" / "served.parquet")
    with pytest.raises(
        ModelError, match="token id 400 is outside the target's vocabulary of 300: check served_as and the endpoint's model"
    ):
        run(
            Job(
                operation="generate",
                output=tmp_path / "strange-out",
                settings={"served_as": ["mine"]},
                inputs={"target": place / "target", "dataset": tmp_path / "dataset", "served": tmp_path / "strange"},
            ),
            Progress(),
        )
    with pytest.raises(ModelError, match=r"tokenizer gives token id \d+, outside the target's vocabulary of 8"):
        write_target(tmp_path / "small", vocab_size=300)
        config = json.loads((tmp_path / "small" / "config.json").read_text())
        (tmp_path / "small" / "config.json").write_text(json.dumps({**config, "vocab_size": 8}))
        run(
            Job(
                operation="generate",
                output=tmp_path / "small-out",
                settings={"served_as": ["mine"]},
                inputs={"target": tmp_path / "small", "dataset": tmp_path / "dataset", "served": tmp_path},
            ),
            Progress(),
        )


def test_answers_do_not_depend_on_batches_and_choices_are_seeded(place, tmp_path):
    run(job(place, tmp_path / "a"), Progress())
    run(job(place, tmp_path / "b", batch_size=7), Progress())
    run(job(place, tmp_path / "c", prompts=6), Progress())
    run(job(place, tmp_path / "d", prompts=6), Progress())
    first, second, third, fourth = (
        {key: row["answer_token_ids"] for key, row in by_turn(tmp_path / name / "train.parquet").items()} for name in "abcd"
    )
    assert first == second
    assert third == fourth and len(third) == 6 and third.items() <= first.items()


def test_a_stopped_run_continues_and_repeats_nothing(place, tmp_path, monkeypatch):
    monkeypatch.setattr(answerers, "CHUNK_BATCHES", 1)
    whole = tmp_path / "whole"
    run(job(place, whole), Progress())
    answered, answer, progress = [], answerers.OwnGenerator.answer, Progress()

    def counting(self, asked):
        answered.extend(each.name for each in asked)
        progress.stop_requested = len(answered) == 8
        return answer(self, asked)

    monkeypatch.setattr(answerers.OwnGenerator, "answer", counting)
    with pytest.raises(Stopped):
        run(job(place, tmp_path / "cut"), progress)
    assert len(answered) == 8 and not (tmp_path / "cut" / "train.parquet").exists()
    run(job(place, tmp_path / "cut"), Progress())
    assert len(answered) == len(set(answered)) == 34
    for name in ("train.parquet", "validation.parquet"):
        assert pq.read_table(tmp_path / "cut" / name).equals(pq.read_table(whole / name))


def test_datasets_that_cannot_be_answered(place, tmp_path):
    with pytest.raises(ModelError, match=r"train\.parquet"):
        run(Job(operation="generate", output=tmp_path, inputs={"target": place / "target", "dataset": tmp_path}), Progress())
    write_target(tmp_path / "short", max_position_embeddings=8)
    with pytest.raises(ModelError, match="no prompt that fits the target's 8 positions"):
        run(
            Job(operation="generate", output=tmp_path, inputs={"target": tmp_path / "short", "dataset": place / "dataset"}),
            Progress(),
        )
