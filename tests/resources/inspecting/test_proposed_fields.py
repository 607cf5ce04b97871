"""Proposed `fields`: guesses from names and shapes, which read the records they were made from."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.drafting.lookup import replay
from model_ops.drafting.ngram import NgramIndex
from resources.curating.shingles import RaggedLists
from resources.inspecting.inspection import InspectError, inspect
from resources.inspecting.prompt_lookup import pieces_of, replayed
from resources.inspecting.proposed_fields import proposed_fields

UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c330"
ASKED = [{"role": "user", "content": "what is it?"}]
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "it is that"}}]}


@pytest.mark.parametrize(("record", "fields"), [
    (
        lambda n: {
            "uuid": f"{UUID}{n}", "payload": json.dumps({"question": "what is it?", "reply": "it is that"}),
            "created": f"2026-06-01T10:00:0{n}Z", "usr": {"email": "a@b"}, "stars": 5,
        },
        {
            "prompt": "payload.question", "answer": "payload.reply", "id": "uuid", "time": "created", "user": "usr.email",
            "feedback": "stars",
        },
    ),
    (
        lambda n: {"a": f"{UUID}{n}", "b": {"x": ASKED}, "c": {"d": f"it is that, for {n}"}, "e": 1780300000 + n},
        {"request": "b.x", "answer": "c.d", "id": "a", "time": "e"},
    ),
    (
        lambda n: {
            "event_id": n, "body": json.dumps({"model": "m", "messages": ASKED}), "res": json.dumps(ANSWER),
            "thumb": "up" if n == 2 else None,
        },
        {"request": "body", "response": "res", "id": "event_id", "feedback": "thumb"},
    ),
    (lambda n: {"ref": n, "thumbs_up": True, "request_id": f"r{n}"}, {"id": "request_id", "feedback": "thumbs_up"}),
    (lambda n: {"k": f"what is this thing, {n}", "v": f"a longer text that answers {n}"}, {"prompt": "k", "answer": "v"}),
    (lambda n: {"chat": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}, {"messages": "chat"}),
    (
        lambda n: {"User Message": "hi there", "Bot Reply": "yes ok", "user.id": "7"},
        {"prompt": "User Message", "answer": "Bot Reply", "user": '["user.id"]'},
    ),
    (
        lambda n: {
            "timestamp": 1780300000 + n, "level": "info", "msg": "GET /health 200 is fine", "logger": "the access log",
        },
        {},
    ),
    (
        lambda n: {"body": {"ask": {"text": f"what is it, {n}?"}, "reply": "it is that"}},
        {"prompt": "body.ask.text", "answer": "body.reply"},
    ),
    (lambda n: {"level": "info", "event": "started"}, {}),
    (lambda n: {"prompt_id": n, "score": n}, {"id": "prompt_id", "feedback": "score"}),
])  # fmt: skip
def test_fields_are_found_by_name_and_shape(record, fields):
    found = proposed_fields([record(number) for number in range(5)])
    assert {name: path for name, path in found.items() if name in fields or not fields} == fields


def test_inspect_prints_a_mapping_that_the_recipe_accepts(tmp_path):
    lines = [{"no": n, "ask": f"what is {n}, please?", "reply": f"it is {n} of course", "say": [n]} for n in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InspectError) as raised:
        inspect([str(tmp_path / "a.jsonl")])
    import yaml

    [source] = yaml.safe_load(str(raised.value).split("\n\n", 1)[1])["sources"].values()
    assert source["fields"]["prompt"] == "ask" and source["fields"]["answer"] == "reply"
    from resources.records.field_mapping import FieldMapping

    found = inspect([source["uri"]], fields={source["uri"]: FieldMapping(**source["fields"])})
    assert found.totals["rows"] == 30 and not found.proposed


def ragged(lists):
    values = np.array([value for each in lists for value in each], np.uint64)
    return RaggedLists(values, np.cumsum([0, *map(len, lists)]).astype(np.int64))


def counted(rows, draft):
    return replayed(ragged([prompt for prompt, _ in rows]), ragged([answer for _, answer in rows]), draft)


tokens = st.lists(st.integers(0, 4), max_size=60)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4), draft=st.integers(1, 6))
def test_counts_are_those_of_the_reference(rows, draft):
    found = counted(rows, draft)
    for place, (prompt, answer) in enumerate(rows):
        forwards, *_ = replay(NgramIndex(prompt), answer, [], draft)
        assert found.forwards[place] == forwards
        assert found.emitted[place] == max(len(answer) - 1, 0)


def test_an_answer_that_repeats_its_prompt_needs_few_forwards_and_a_new_one_as_many_as_tokens():
    copied, fresh = (list(range(100)), list(range(100))), (list(range(100)), list(range(100, 200)))
    found = counted([copied, fresh], 3)
    assert found.forwards.tolist() == [25, 99]
    assert (found.emitted / found.forwards).round(2).tolist() == [3.96, 1.0]


def test_one_answer_for_each_prompt():
    with pytest.raises(ValueError, match="2 prompts and 1 answers"):
        replayed(ragged([[1], [2]]), ragged([[1]]), 3)


@pytest.mark.parametrize("text, count", [
    ("", 0), (None, 0), ("hello world", 2), ("internationalisation", 3), ("12345", 2), ("a  b", 3), ("====", 1), ("x == y", 4),
    ("日本", 2), (" \n\n", 2),
])  # fmt: skip
def test_pieces(text, count):
    assert pieces_of(pa.array([text], pa.string())).lengths.tolist() == [count]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_the_same_texts_have_the_same_pieces_wherever_they_stand(texts):
    together = pieces_of(pa.array(texts, pa.string()))
    for place, text in enumerate(texts):
        alone = pieces_of(pa.array(["x" * 7, text], pa.string()).slice(1))
        assert together.values[together.offsets[place] : together.offsets[place + 1]].tolist() == alone.values.tolist()
