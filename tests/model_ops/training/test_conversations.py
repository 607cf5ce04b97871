"""What the assistant wrote is marked, its end of turn too, and nothing else; every row is accounted for."""

from pathlib import Path

import numpy as np
import pytest

from model_ops.errors import ModelError
from model_ops.models.model_directory import load_tokenizer
from model_ops.training.conversations import Row, end_of_turn_ids, read_documents, read_rows, tokenize

HOUSE = Path(__file__).parents[4] / "shared" / "models" / "house"
TWO_TURNS = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "one"},
             {"role": "assistant", "content": "first answer"}, {"role": "user", "content": "two"},
             {"role": "assistant", "content": "second answer"}]
UNMARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


def learnt(tokenizer, document):
    return tokenizer.decode(document.input_ids[document.targets])


def test_every_answer_with_its_end_of_turn_and_nothing_else(tokenizer):
    documents, counts = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == "first answer<|im_end|>second answer<|im_end|>"
    assert counts.target_tokens == documents[0].target_tokens
    whole = tokenizer.apply_chat_template(TWO_TURNS, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    assert documents[0].input_ids.tolist() == whole["input_ids"]
    assert documents[0].targets.tolist() == [bool(mark) for mark in whole["assistant_masks"]]


def test_weight_zero_is_context(tokenizer):
    messages = [dict(message) for message in TWO_TURNS]
    messages[2]["weight"] = 0
    documents, _ = tokenize([Row("a", messages)], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == "second answer<|im_end|>"


def test_tool_calls_are_learnt_and_tools_are_shown(tokenizer):
    call = {"type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    row = Row("a", [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "content": "42"}], [{"type": "function", "function": {"name": "look"}}])
    documents, _ = tokenize([row], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == (
        '\n<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call><|im_end|>')
    assert "# Tools" in tokenizer.decode(documents[0].input_ids)


def test_a_template_without_marks_gives_the_same_answers(tokenizer):
    marked, _ = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    tokenizer.chat_template = UNMARKED
    derived, _ = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    assert np.array_equal(marked[0].input_ids, derived[0].input_ids)
    assert np.array_equal(marked[0].targets, derived[0].targets)


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer):
    tokenizer.chat_template = UNMARKED.replace("m.content +", "(m.content if loop.last else 'gone') +")
    with pytest.raises(ModelError, match=r"row a: .*rewrites earlier turns"):
        tokenize([Row("a", TWO_TURNS)], tokenizer, 256)


def test_an_end_of_turn_outside_the_block_is_learnt_all_the_same(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    )
    documents, _ = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == "first answer<|im_end|>second answer<|im_end|>"
    assert end_of_turn_ids(tokenizer) == [tokenizer.eos_token_id]


def test_cut_and_dropped_rows_are_counted(tokenizer):
    rows = [Row("long", TWO_TURNS), Row("silent", TWO_TURNS[:2]), Row("late", [
        {"role": "user", "content": "word " * 80}, {"role": "assistant", "content": "never reached"}])]
    whole, _ = tokenize([rows[0], rows[2]], tokenizer, 10_000)
    documents, counts = tokenize(rows, tokenizer, 40)
    assert [document.row_id for document in documents] == ["long"]
    assert counts.rows == 3 and counts.dropped_rows == 2
    assert counts.cut_tokens == sum(max(0, len(document) - 40) for document in whole)
    assert len(documents) + counts.dropped_rows == counts.rows


def test_a_dataset_is_read_whole(chats, tokenizer):
    documents, counts = read_documents(chats, "train", tokenizer, 256)
    assert [document.row_id for document in documents] == [f"train-{i}" for i in range(40)]
    assert counts["dropped_rows"] == counts["cut_rows"] == 0


def test_what_is_wrong_with_a_dataset_is_named(chats, tmp_path):
    with pytest.raises(ModelError, match=r"has no test\.parquet"):
        read_rows(chats, "test")
    (tmp_path / "train.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ModelError, match="cannot be read as Parquet"):
        read_rows(tmp_path, "train")


@pytest.mark.skipif(not HOUSE.exists(), reason="needs ../shared/models/house")
def test_a_real_models_template_agrees_with_transformers():
    tokenizer = load_tokenizer(HOUSE)
    documents, _ = tokenize([Row("a", TWO_TURNS)], tokenizer, 2048)
    whole = tokenizer.apply_chat_template(TWO_TURNS, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    assert documents[0].input_ids.tolist() == whole["input_ids"]
    assert documents[0].targets.tolist() == [bool(mark) for mark in whole["assistant_masks"]]
