"""Proposed `fields`: guesses from names and shapes, which read the records they were made from."""

import json

import pytest

from resources.inspecting.inspection import InspectError, inspect
from resources.inspecting.proposed_fields import proposed_fields

UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c330"
ASKED = [{"role": "user", "content": "what is it?"}]
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "it is that"}}]}


@pytest.mark.parametrize(
    ("record", "fields"),
    [
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
                "event_id": n,
                "body": json.dumps({"model": "m", "messages": ASKED}),
                "res": json.dumps(ANSWER),
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
    ],
)  # fmt: skip
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
