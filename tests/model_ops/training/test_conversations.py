"""What the assistant wrote is marked, its end of turn too, and nothing else; every row is accounted for."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, processors

from model_ops.documents.conversations import read_documents, split_document, tokenize
from model_ops.documents.documents import Document
from model_ops.jobs import ModelError
from model_ops.models.model_directory import load_tokenizer
from model_ops.rendering import Row, end_of_turn_ids, read_rows
from model_ops.tensors.batch import IGNORED

HOUSE = Path(__file__).parents[4] / "shared" / "models" / "house"
TWO_TURNS = [
    {"role": "system", "content": "Be short."}, {"role": "user", "content": "one"},
    {"role": "assistant", "content": "first answer"}, {"role": "user", "content": "two"},
    {"role": "assistant", "content": "second answer"},
]  # fmt: skip
ASKED = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
UNMARKED = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}" + ASKED


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
    ids = documents[0].input_ids.tolist()
    assert ids == whole["input_ids"][: len(ids)] and tokenizer.decode(whole["input_ids"][len(ids) :]) == "\n"
    assert documents[0].targets.tolist() == [bool(mark) for mark in whole["assistant_masks"]][: len(ids)]


def test_weight_zero_is_context(tokenizer):
    messages = [dict(message) for message in TWO_TURNS]
    messages[2]["weight"] = 0
    documents, _ = tokenize([Row("a", messages)], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == "second answer<|im_end|>"


def test_tool_calls_are_learnt_and_tools_are_shown(tokenizer):
    call = {"type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    row = Row(
        "a",
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42"},
        ],
        [{"type": "function", "function": {"name": "look"}}],
    )
    documents, _ = tokenize([row], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == ('\n<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call><|im_end|>')
    assert "# Tools" in tokenizer.decode(documents[0].input_ids)


def test_a_template_without_marks_gives_the_same_answers(tokenizer):
    marked, _ = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    tokenizer.chat_template = UNMARKED
    derived, _ = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    assert np.array_equal(marked[0].input_ids, derived[0].input_ids)
    assert np.array_equal(marked[0].targets, derived[0].targets)


def test_a_template_that_rewrites_earlier_turns_gives_each_answer_its_own_context(tokenizer):
    tokenizer.chat_template = UNMARKED.replace("m.content +", "(m.content if loop.last or m.role != 'assistant' else 'gone') +")
    documents, counts = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    assert [learnt(tokenizer, document) for document in documents] == ["first answer<|im_end|>", "second answer<|im_end|>"]
    assert "gone<|im_end|>" in tokenizer.decode(documents[1].input_ids)
    assert (counts.rows, counts.contexts) == (1, 2)
    [joined], joined_counts = tokenize([Row("a", TWO_TURNS)], tokenizer, 256, joined_tokens=256)
    assert sorted(learnt(tokenizer, document) for document in documents) == sorted(
        learnt(tokenizer, Document("a", joined.input_ids[part], joined.targets[part]))
        for part in (slice(0, joined.segments[0].length), slice(joined.segments[0].length, None))
    )
    assert (joined_counts.contexts, joined_counts.joined_contexts, len(joined_counts.unrenderable)) == (2, 1, 0)
    assert joined_counts.shared_tokens == joined.branches[0].at == counts.row_tokens - joined_counts.row_tokens > 16


def test_an_end_of_turn_outside_the_block_is_learnt_all_the_same(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}" + ASKED
    )
    documents, _ = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == "first answer<|im_end|>second answer<|im_end|>"
    assert end_of_turn_ids(tokenizer) == [tokenizer.eos_token_id]


def test_an_end_of_turn_that_has_no_role_in_the_tokenizer_is_learnt_and_ends_generation(tokenizer):
    """Llama 3's base models: eos is another token, <|eot_id|> is only marked as special."""
    tokenizer.add_tokens([AddedToken("<|eot|>", special=True)])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '<|eot|>\n' }}{% endfor %}" + ASKED
    )
    assert "<|eot|>" not in tokenizer.all_special_tokens
    documents, _ = tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == "first answer<|eot|>second answer<|eot|>"
    assert end_of_turn_ids(tokenizer) == [tokenizer.convert_tokens_to_ids("<|eot|>")]


def test_tokens_of_spaces_alone_are_learnt_where_offsets_are_trimmed(tokenizer):
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    answer = "if x:\n        pass \t\n    \n  你好 😀 end   "
    documents, _ = tokenize([Row("a", [TWO_TURNS[1], {"role": "assistant", "content": answer}])], tokenizer, 256)
    assert learnt(tokenizer, documents[0]) == answer + "<|im_end|>"
    assert tokenizer.backend_tokenizer.post_processor is not None


def test_there_is_no_end_of_turn_to_learn_from_a_tokenizer_without_template(tokenizer):
    tokenizer.chat_template = None
    assert end_of_turn_ids(tokenizer) == []


@pytest.mark.parametrize("weight", [0.5, "0", -1, []])
def test_a_weight_that_is_neither_context_nor_learnt_is_refused(tokenizer, weight):
    messages = [TWO_TURNS[1], {**TWO_TURNS[2], "weight": weight}]
    with pytest.raises(
        ModelError, match=r"1 of 1 rows.* in 1 rows such as a: an assistant message has a weight that is neither 0"
    ):
        tokenize([Row("a", messages)], tokenizer, 256)


@pytest.mark.parametrize(
    ("token_ids", "labels", "sentence"),
    [
        ([1, 2**40, 3], None, "outside the tokenizer's vocabulary"),
        ([1, None, 3], None, "token_ids holds a value that is not an integer"),
        ([1, 2, 3], [1, 2, 4], "label 4 at position 2 is neither that position's token"),
        ([1, 2, 3], [1, 2, None], "labels holds"),
    ],
)
def test_a_pre_tokenized_row_that_makes_no_sense_is_named(tokenizer, token_ids, labels, sentence):
    with pytest.raises(ModelError, match=f"row a: .*{sentence}"):
        tokenize([Row("a", [], token_ids=token_ids, labels=labels)], tokenizer, 256)


def test_what_a_template_says_in_its_own_words_is_passed_on_and_what_it_quotes_is_not(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('System role not supported') if messages[0].role == 'system' }}"
    with pytest.raises(ModelError, match=r"such as a: .*\(System role not supported\)"):
        tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    tokenizer.chat_template = "{{ raise_exception('I refuse ' + messages[0].content) }}"
    with pytest.raises(ModelError, match=r"such as a: .*\(TemplateError\)"):
        tokenize([Row("a", TWO_TURNS)], tokenizer, 256)
    tokenizer.chat_template = "{% for m in messages %}\n{{ m.content }"
    with pytest.raises(ModelError, match="the chat template is not valid Jinja, line 2"):
        tokenize([Row("a", TWO_TURNS)], tokenizer, 256)


def test_cut_and_dropped_rows_are_counted(tokenizer):
    rows = [
        Row("long", TWO_TURNS),
        Row("silent", TWO_TURNS[:2]),
        Row("late", [{"role": "user", "content": "word " * 80}, {"role": "assistant", "content": "never reached"}]),
    ]
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
    ids = documents[0].input_ids.tolist()
    assert ids == whole["input_ids"][: len(ids)] and tokenizer.decode(whole["input_ids"][len(ids) :]) == "\n"
    assert documents[0].targets.tolist() == [bool(mark) for mark in whole["assistant_masks"]][: len(ids)]


@given(st.integers(1, 200), st.integers(2, 40), st.integers(0, 2**32))
def test_a_split_document_has_every_target_predicted_once(length, max_length, seed):
    rng = np.random.default_rng(seed)
    whole = Document("a", np.arange(length), rng.random(length) < 0.5, {"advantage": rng.random(length)})
    pieces = split_document(whole, max_length)
    assert all(1 <= len(piece) <= max_length and piece.row_id == "a" for piece in pieces)
    predicted = [int(token) for piece in pieces for token in piece.input_ids[1:][piece.targets[1:]]]
    assert predicted == [int(token) for token in whole.input_ids[1:][whole.targets[1:]]]
    assert sum(piece.target_tokens for piece in pieces) == whole.target_tokens
    seen = [token for number, piece in enumerate(pieces) for token in piece.input_ids.tolist()[number > 0 :]]
    assert seen == list(range(length))
    for piece in pieces:
        assert piece.streams["advantage"].tolist() == whole.streams["advantage"][piece.input_ids].tolist()


def test_what_is_longer_than_a_row_is_cut_split_or_left_out_and_counted(tokenizer):
    def row(name, tokens, learnt):
        return Row(name, [], token_ids=list(range(tokens)), labels=[i if i in learnt else IGNORED for i in range(tokens)])

    rows = [row("short", 8, range(4, 8)), row("long", 25, range(5, 25)), row("late", 25, range(20, 25)), row("none", 25, [])]
    found = {way: tokenize(rows, tokenizer, 10, way) for way in ("truncate", "split", "drop")}
    documents, counts = found["truncate"]
    assert [(d.row_id, len(d)) for d in documents] == [("short", 8), ("long", 10)]
    assert (counts.cut_rows, counts.cut_tokens, counts.dropped_rows) == (3, 45, 2)
    documents, counts = found["split"]
    assert [(d.row_id, len(d)) for d in documents] == [("short", 8), ("long", 10), ("long", 10), ("long", 7), ("late", 7)]
    assert (counts.split_rows, counts.split_pieces, counts.dropped_rows, counts.cut_rows) == (2, 4, 1, 0)
    assert counts.target_tokens == 4 + 20 + 5
    documents, counts = found["drop"]
    assert [(d.row_id, len(d)) for d in documents] == [("short", 8)]
    assert (counts.too_long_rows, counts.dropped_rows) == (3, 0)
    for documents, counts in found.values():
        assert (
            counts.rows
            == 4
            == (len(documents) - counts.split_pieces + counts.split_rows + counts.dropped_rows + counts.too_long_rows)
        )
        assert counts.row_tokens == sum(len(document) for document in documents)


def test_rows_beyond_one_reading_are_all_there(tokenizer):
    rows = [Row(f"row-{i}", TWO_TURNS) if i % 3 else Row(f"row-{i}", [], token_ids=[1, 2, 3]) for i in range(1_100)]
    documents, counts = tokenize(iter(rows), tokenizer, 256)
    assert documents.row_ids == [row.row_id for row in rows] and counts.rows == 1_100
    assert documents[1_000].input_ids.tolist() == documents[1].input_ids.tolist()
