"""The end of a streamed answer is seen however the network cuts it, and never in its text; the journal has it by then."""

import json
from types import SimpleNamespace

import pytest

from resources.gateway.journal import Journal, frames
from resources.gateway.keys import KeyRules
from resources.gateway.recorder import StreamEnd, TrafficRecorder
from resources.gateway.routes import Backend

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
TRAP = 'data: [DONE]\\n\\n{"type": "message_stop"} event: response.completed "type":"response.failed"'


def event(name, **data):
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


STREAMS = {
    "chat": [b'data: {"choices": [{"delta": {"content": %s}}]}\n\n' % json.dumps(TRAP).encode(), b"data: [DONE]\n\n"],
    "messages": [event("content_block_delta", delta={"type": "text_delta", "text": TRAP}), event("message_stop")],
    "responses": [
        event("response.output_text.delta", delta=TRAP),
        event("response.incomplete", response={"id": "r", "output": "x" * 3_000}),
    ],
}
"""All but the last event, and the last one."""


def written(form, whole, ends):
    """The same stream with other line ends, and without the names of events."""
    parts = [part.replace(b"\n", ends) for part in STREAMS[form]]
    return (
        parts if whole else [b"\n".join(line for line in part.split(b"\n") if not line.startswith(b"event:")) for part in parts]
    )


@pytest.mark.parametrize("form", STREAMS)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_the_last_event_is_seen_when_it_is_whole_and_no_sooner(form, named, ends, size):
    *_, last = parts = written(form, named, ends)
    text = b"".join(parts)
    cuts = [text[place : place + size] for place in range(0, len(text), size)]
    end = StreamEnd(form)
    seen = [end.seen(cut) for cut in cuts]
    first = seen.index(True)
    assert not any(seen[:first]) and first * size + size >= len(text) - len(last)
    read = b"".join(cuts[: first + 1]).rstrip()
    assert read == text.rstrip()  # nothing of the answer comes after it


def test_a_stream_of_chat_that_ends_without_an_empty_line():
    end = StreamEnd("chat")
    assert not end.seen(b"data: [DO") and end.seen(b"NE]")


@pytest.mark.parametrize("form", STREAMS)
def test_the_journal_has_the_answer_before_its_last_part_is_passed_on(tmp_path, form):
    journal = Journal(tmp_path, "run-1")
    recorder = TrafficRecorder(journal, KeyRules())
    exchange = recorder.begins(SimpleNamespace(method="POST", path=PATHS[form], headers={}), b"{}")
    exchange.starts(Backend("http://127.0.0.1:9", ""), 200, {"Content-Type": "text/event-stream"}, None)
    kept = []
    for part in STREAMS[form]:
        exchange.part(part)
        kept.append(journal.written)
    exchange.ends()
    assert kept == [0, 1] and journal.written == 1
    journal.close()
    [frame] = [frame for path in tmp_path.iterdir() for frame in frames(path)]
    assert frame.answer == b"".join(STREAMS[form])


def test_a_long_answer_of_known_length_is_kept_with_its_last_byte(tmp_path):
    journal = Journal(tmp_path, "run-1")
    exchange = TrafficRecorder(journal, KeyRules()).begins(
        SimpleNamespace(method="POST", path=PATHS["chat"], headers={}), b"{}"
    )
    exchange.starts(Backend("http://127.0.0.1:9", ""), 200, {"Content-Type": "application/json"}, 6)
    exchange.part(b"{ab")
    assert journal.written == 0
    exchange.part(b"cd}")
    assert journal.written == 1
