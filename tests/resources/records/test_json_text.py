"""Half a character in a text: wherever it stands in a log, the record is read, and what is stored is text."""

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_formats import pair, read
from test_normalised import chunk, events

from model_ops.chat_apis.valid_json import json_text, mended
from resources.curating.personal_data.placeholders import Redactor
from resources.records.formats import FORMATS
from tests.thorough_cases import thorough_except

texts = st.text(st.characters() | st.sampled_from("\ud83d\ude00\udfff"), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)


@given(values)
@settings(max_examples=200, deadline=None)
def test_law_any_value_becomes_text_and_whole_ones_stay_as_they_are(value):
    text, escaped = json_text(value), json.dumps(value)
    assert text.encode().decode() == text
    assert json_text(json.loads(text)) == text and mended(text) is None
    if "\\ud" not in escaped:
        assert json.loads(text) == value and mended(escaped) is None
    elif mended(escaped) is not None:
        assert json.loads(mended(escaped)) == json.loads(text)


def test_halves_that_meet_are_one_character_and_others_a_mark():
    assert json_text(["\ud83d" + "\ude00", "a\ud83d", "\ude00b"]) == '["😀","a�","�b"]'
    assert mended('{"cut": "a\\ud83d') is None and mended('{"a": "\\\\ud83d"}') is None


def answered(**message):
    record = pair()
    record["response"]["choices"][0]["message"] = {"role": "assistant", "content": None, **message}
    return record


PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(bytes(99)).decode()}"}}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": {"q": "x\ud83d"}}}
HALVES = {"answer": [answered(content="x\ud83d")], "arguments": [answered(tool_calls=[CALL])],
    "beside a picture": [
        pair(request={"messages": [{"role": "user", "content": [{"type": "text", "text": "x\ud83d"}, PICTURE]}]})],
    "events": [pair(response=events([chunk(delta={"content": "x\ud83d"}), chunk(finish="stop")]))],
    "chunks": [chunk(delta={"content": "x\ud83d"}, request=pair()["request"]), chunk(finish="stop")],
    "other format": [pair(), {"response_id": "r1", "value": "up", "comment": "x\ud83d"}]}  # fmt: skip


@pytest.mark.parametrize("place", thorough_except(["arguments", "chunks", "other format"], HALVES))
def test_a_record_with_half_a_character_is_read(tmp_path, place):
    good = pair()
    good["response"] = {**good["response"], "id": "whole"}
    rows, bad, feedback, report = read(tmp_path, "".join(json.dumps(each) + "\n" for each in [good, *HALVES[place]]).encode())
    assert not bad and len(rows) == 2 and report.total.read == len(rows) + len(feedback)
    assert "x�" in json.dumps([rows, feedback], default=str, ensure_ascii=False)


def test_a_character_that_two_chunks_share_is_whole_again(tmp_path):
    first, *others = [chunk(delta={"content": piece}) for piece in ("x\ud83d", "\ude00y")]
    (row,), bad, _, _ = read(tmp_path, [{**first, "request": pair()["request"]}, *others, chunk(finish="stop")])
    assert not bad and json.loads(row["completion"])["content"] == "x😀y"


@pytest.mark.parametrize("odd", ['"q": ' + "9" * 5000, '"q": ' + "[" * 3000 + "]" * 3000])
def test_numbers_and_nesting_beyond_reason_cost_their_own_record_only(tmp_path, odd):
    text = json.dumps(answered(tool_calls=[{"id": "t", "type": "function", "function": {"name": "f", "arguments": {"q": 7}}}]))
    rows, (bad,), _, report = read(tmp_path, "\n".join([text.replace('"q": 7', odd), json.dumps(pair())]).encode())
    assert len(rows) == 1 and (bad["source_row"], bad["error_code"]) == (1, "wrong_type") and report.total.read == 2


@pytest.mark.parametrize("depth", thorough_except([700, 990, 3000], [300, 700, 950, 990, 3000]))
def test_nesting_beside_a_picture_costs_nothing(tmp_path, depth):
    record = json.dumps(pair(request={"messages": [{"role": "user", "content": [PICTURE]}]}))
    deep = f'{record[:-1]}, "deep": {"[" * depth}{"]" * depth}}}'
    rows, bad, _, _ = read(tmp_path, "\n".join([deep, record.replace("r1", "r2"), deep.replace("r1", "r3")]).encode())
    assert not bad and len(rows) == 3
    stream = json.dumps(chunk(delta={"content": "a"}, request=pair()["request"]))
    lines = [f'{stream[:-1]}, "usage": {"[" * depth}{"]" * depth}}}', json.dumps(chunk(finish="stop"))]
    rows, bad, _, report = read(tmp_path, "\n".join(lines).encode(), name="chunks.jsonl")
    assert report.total.read in (1, 2) and len(rows) + len(bad) >= 3  # too deep for the fold: lines, each with its reason


def test_personal_data_beside_half_a_character_in_a_tools_arguments():
    arguments = json.dumps({"q": "x\ud83d mail a@example.org"})
    redacted = Redactor().redact_json(json.dumps([{"role": "assistant", "arguments": arguments}]))
    assert redacted.encode() and "<EMAIL_1>" in redacted and "a@example" not in redacted


odd = (
    st.none()
    | st.integers()
    | st.text(max_size=3)
    | st.lists(st.none() | st.dictionaries(st.text(max_size=2), st.none()))
    | (st.dictionaries(st.sampled_from(["object", "choices", "a"]), st.none() | st.lists(st.integers()), max_size=2))
)
KEYS = (
    "trace_id", "start_time", "type", "data_type", "name", "value", "object", "data", "choices", "event", "rid", "obj",
    "messages", "prompt", "input_ids", "token_ids", "traj", "text", "custom_id", "id", "response", "conversations",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), odd))
@settings(max_examples=300, deadline=None)
def test_law_no_record_is_too_odd_to_be_asked_for_its_format(record):
    assert all(form.recognises(record) in (True, False) for form in FORMATS.values())
