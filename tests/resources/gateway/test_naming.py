"""Names of a shared server's models: changed in requests and answers, wherever an answer is cut, and never in text."""

import json

import pytest

from resources.gateway.routes import Naming, NoModelNamedError, model_of

NAMING = Naming("tutor", "tutor@3f2a", "millrace-3f2a-99", "millrace-base-11")
TEXT = 'say "model":"tutor@3f2a" and "system_fingerprint":"millrace-base-11", model tutor@3f2a'


def answers():
    said = {"id": "1", "model": "tutor@3f2a", "system_fingerprint": "millrace-base-11", "choices": [{"text": TEXT}]}
    return [json.dumps(said, separators=pair).encode() for pair in ((",", ":"), (", ", ": "))]


@pytest.mark.parametrize(
    "whole", [*answers(), b"".join(b"data: %s\n\n" % answers()[0] for _ in range(2)), b"", b'"model":"tutor@3f']
)
def test_an_answer_is_the_same_wherever_it_is_cut(whole):
    expected = NAMING.answer()
    at_once = expected.part(whole) + expected.rest()
    for first in range(len(whole) + 1):
        renamed = NAMING.answer()
        second = min(len(whole), first + 7)
        parts = [renamed.part(part) for part in (whole[:first], whole[first:second], whole[second:])]
        assert b"".join(parts) + renamed.rest() == at_once


def test_fields_are_changed_and_text_is_not():
    for whole in answers():
        renamed = NAMING.answer()
        said = json.loads(renamed.part(whole) + renamed.rest())
        assert said == {"id": "1", "model": "tutor", "system_fingerprint": "millrace-3f2a-99", "choices": [{"text": TEXT}]}


def test_an_event_of_a_stream_never_waits_for_the_next_one():
    renamed = NAMING.answer()
    event = b"data: %s\n\n" % answers()[0]
    assert renamed.part(event).endswith(b"\n\n") and renamed.rest() == b""


def test_a_request_gets_the_servers_name_and_keeps_everything_else():
    asked = json.loads(
        NAMING.asked(json.dumps({"model": "tutor", "messages": [{"content": "\ud83d tutor"}], "n": 1.5}).encode())
    )
    assert asked == {"model": "tutor@3f2a", "messages": [{"content": "\ud83d tutor"}], "n": 1.5}


@pytest.mark.parametrize(
    ("body", "known", "status"),
    [
        (b"{", ["a", "b"], 400),
        (b"[]", ["a"], 400),
        (b"{}", ["a", "b"], 400),
        (b'{"model": 7}', ["a", "b"], 400),
        (b'{"model": "c"}', ["a", "b"], 404),
        (b'{"model": "a@1"}', ["a"], 404),
        (b"[" * 100_000, ["a"], 400),
    ],
)
def test_a_request_that_names_no_model_is_answered_with_what_there_is(body, known, status):
    with pytest.raises(NoModelNamedError) as refused:
        model_of(body, known)
    assert refused.value.status == status and "c" not in str(refused.value).split("there are")[-1].split()


def test_where_one_model_is_served_it_need_not_be_named():
    assert model_of(b"{}", ["a"]) == model_of(b'{"model": ""}', ["a"]) == model_of(b'{"model": "a"}', ["a", "b"]) == "a"
