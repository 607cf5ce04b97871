"""Captured traffic: what passes through a front becomes objects that ingest reads, every field, and the client notices
nothing."""

import errno
import gzip
import hashlib
import http.client
import json
import os
import re
import socket
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import urllib3
import zstandard
from chat_server import TOOL_CALL, USAGE, chat_server, stream_lines

from resources.digests.user_hash import keyed_hash
from resources.gateway.capture import Capture, CaptureSettings, FeedbackDoor, require_another_server, server_url
from resources.gateway.front import Front
from resources.gateway.journal import OPEN, READY, CaptureError, DiskStore, Frame, Journal, frames, open_store, segments
from resources.gateway.keys import KeyRule, KeyRules, read_rules, read_sampling
from resources.gateway.litellm_callback import LoggedCalls, capture_callback
from resources.gateway.record import record_of
from resources.gateway.recorder import TrafficRecorder
from resources.gateway.routes import Backend, Route, place_of
from resources.gateway.shipper import Shipper, ship
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

CHAT, KEY = "/v1/chat/completions", "sk-of-a-test"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "is it?"}]
ASKED = {"model": "m", "messages": MESSAGES, "temperature": 0.3, "max_tokens": 9, "user": "ann@example.org"}
ASKED |= {"chat_template_kwargs": {"enable_thinking": False}, "metadata": {"session_id": "s-17", "secret": "x"}}
ASKED["tools"] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@contextmanager
def captured(tmp_path, server, rules=None, **settings):
    """A front before the server. Yields url, journal, recorder; when the block ends, its segments are in tmp_path/logs."""
    (tmp_path / "journal").mkdir()
    most = settings.pop("most_bytes", 1 << 30)
    journal = Journal(tmp_path / "journal", "run-1", most)
    rules = rules or KeyRules()
    recorder = TrafficRecorder(journal, rules, **settings)
    door = FeedbackDoor(journal, rules)
    with Front("127.0.0.1", 0, 5, recorder, {"POST /feedback": door.answer}) as front:
        front.switch([Route(Backend(server if isinstance(server, str) else server.url, ""))])
        yield SimpleNamespace(url=front.url, journal=journal, recorder=recorder)
    journal.close()
    for segment in segments(tmp_path / "journal", READY):
        ship(segment, DiskStore(str(tmp_path / "logs")))


def ask(front, body=None, path=CHAT, **headers):
    body = body if isinstance(body, bytes) else json.dumps(body if body is not None else ASKED).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", **given}
    return urllib3.request("POST", front.url + path, body=body, headers=headers, retries=False, timeout=10)


def objects(tmp_path, kind="traffic"):
    paths = sorted((tmp_path / "logs").rglob(f"{kind}-*.jsonl.zst"))
    return [
        json.loads(line)
        for path in paths
        for line in zstandard.ZstdDecompressor().decompress(path.read_bytes()).decode().splitlines()
    ]


def ingested(tmp_path):
    """(interactions, quarantine, feedback, report), as `millrace run` reads the objects."""
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    report = ingest(tables, "shop", {"capture": SourceSettings(uri=str(tmp_path / "logs"))})
    found = []
    for name in ("interactions", "quarantine", "feedback"):
        opened = tables.open(name)
        found.append(opened.to_pyarrow_table().to_pylist() if opened else [])
    return *found, report


@pytest.fixture(autouse=True)
def user_key(monkeypatch):
    monkeypatch.setenv("MILLRACE_USER_HASH_KEY", "k")


def test_every_field_of_a_captured_chat_is_ingested(tmp_path):
    began, sampling = datetime.now(UTC), {"temperature": 1.0, "top_p": 0.8}
    how = {"ask_for_ids": True, "digest": "abc123def456", "sampling": sampling}
    with chat_server() as server, captured(tmp_path, server, **how) as front:
        assert ask(front, X_Request_Id="gw-1").status == 200
        assert ask(front, {**ASKED, "stream": True}).status == 200
        ask(front, {"id": "gw-1", "value": "down", "name": "thumbs", "comment": "no"}, "/feedback")
        ask(front, {"id": "chatcmpl-2", "value": True}, "/feedback")
        ask(front, {"id": "never seen", "value": 0.5}, "/feedback")
    rows, bad, feedback, report = ingested(tmp_path)
    assert not bad and report.total.read == 5
    whole, streamed = sorted(rows, key=lambda row: row["request_id"])
    for row in (whole, streamed):
        assert row["session_id"] == "s-17" and row["user_hash"] == keyed_hash("ann@example.org")
        assert json.loads(row["messages"]) == MESSAGES and json.loads(row["tools"]) == ASKED["tools"]
        assert row["prompt_token_ids"] == [1, 2, 3] and row["completion_token_ids"] == [7, 8]
        assert row["served_model_digest"] == "abc123def456" and row["model"] == "m-1" and row["finish_reason"] == "stop"
        assert (row["status"], row["error"], row["prompt_tokens"], row["completion_tokens"]) == ("success", None, 3, 2)
        assert 0 < row["latency_ms"] < 10_000 and began <= row["ts"] <= datetime.now(UTC)
        params = {"temperature": 0.3, "top_p": 0.8, "max_tokens": 9, "chat_template_kwargs": {"enable_thinking": False}}
        assert params | ({"stream": True} if row is streamed else {}) == json.loads(row["params"])
    assert (whole["request_id"], whole["alias_id"], whole["ttft_ms"]) == ("chatcmpl-1", "gw-1", None)
    assert 0 < streamed["ttft_ms"] <= streamed["latency_ms"]
    assert json.loads(whole["completion"]) == {"role": "assistant", "content": 'it is, "token_ids": [9]'}
    assert json.loads(streamed["completion"]) == {"role": "assistant", "content": "hé yes"}
    tied = {each["request_id"]: each for each in feedback}
    assert (tied["gw-1"]["interaction_id"], tied["gw-1"]["tie"]) == (whole["interaction_id"], "gateway")
    assert (tied["gw-1"]["value"], tied["gw-1"]["name"], tied["gw-1"]["comment"]) == (-1, "thumbs", "no")
    assert (tied["chatcmpl-2"]["interaction_id"], tied["chatcmpl-2"]["value"]) == (streamed["interaction_id"], 1)
    assert tied["never seen"]["tie"] == "unknown" and tied["never seen"]["value"] == 0.5
    written = "".join(json.dumps(line) for line in objects(tmp_path))
    assert "ann@" not in written and KEY not in written and "secret" not in written
    [place] = {path.parent.relative_to(tmp_path / "logs").as_posix() for path in (tmp_path / "logs").rglob("*.zst")}
    assert re.fullmatch(r"dt=\d{4}-\d\d-\d\d/hour=\d\d", place)


def test_a_stream_comes_byte_for_byte_and_a_whole_answer_without_ids_that_nobody_asked_for(tmp_path):
    with chat_server() as server, captured(tmp_path, server, ask_for_ids=True) as front:
        assert ask(front, {**ASKED, "stream": True}).data == b"".join(stream_lines("chatcmpl-1", True, ""))
        answer = json.loads(ask(front).data)
        assert "prompt_token_ids" not in answer and "token_ids" not in answer["choices"][0]
        assert answer["choices"][0]["message"]["content"] == 'it is, "token_ids": [9]' and answer["usage"]["total_tokens"] == 5
        own = json.loads(ask(front, {**ASKED, "return_token_ids": True}).data)
        assert own["choices"][0]["token_ids"] == [7, 8] and own["prompt_token_ids"] == [1, 2, 3]
        assert [json.loads(body).get("return_token_ids") for body in server.seen] == [True] * 3
        assert {name: value for name, value in json.loads(server.seen[1]).items() if name != "return_token_ids"} == ASKED
    assert [line["response"]["prompt_token_ids"] for line in objects(tmp_path)] == [[1, 2, 3]] * 3


def test_without_the_setting_the_body_reaches_the_server_untouched(tmp_path):
    body = b'{"messages":  [{"role": "user", "content": "x"}], "n": 1.0}'
    with chat_server() as server, captured(tmp_path, server) as front:
        ask(front, body)
        assert server.seen == [body]
    assert "token_ids" not in json.dumps(objects(tmp_path)[0]["response"]["choices"][0].get("token_ids") or "")


def test_a_server_that_refuses_the_question_for_ids_is_asked_again_and_never_more(tmp_path):
    with chat_server(refuses_ids=True) as server, captured(tmp_path, server, ask_for_ids=True) as front:
        assert ask(front).status == 200 and ask(front).status == 200
        assert [b"return_token_ids" in body for body in server.seen] == [True, False, False]
        assert not front.recorder.ask_for_ids
        assert ask(front, {**ASKED, "return_token_ids": True}).status == 400  # the client's own question
    assert [line["status_code"] for line in objects(tmp_path)] == [200, 200, 400]


def test_a_server_that_refuses_both_is_asked_for_ids_again(tmp_path):
    with chat_server(complains=True) as server, captured(tmp_path, server, ask_for_ids=True) as front:
        assert ask(front).status == 400 and ask(front).status == 400
        assert [b"return_token_ids" in body for body in server.seen] == [True, False] * 2 and front.recorder.ask_for_ids
    told = json.dumps(objects(tmp_path))
    assert "wrong: {" in told and "[user]" in told and "ann@example.org" not in told  # the error quotes the request


def test_a_whole_answer_of_unknown_length_comes_without_ids_that_nobody_asked_for(tmp_path):
    with chat_server(chunked=True) as server, captured(tmp_path, server, ask_for_ids=True) as front:
        answer = json.loads(ask(front, Accept_Encoding="gzip").data)
        assert "prompt_token_ids" not in answer and answer["usage"]["total_tokens"] == 5
        assert json.loads(ask(front, {**ASKED, "return_token_ids": True}).data)["prompt_token_ids"] == [1, 2, 3]
    assert [line["response"]["prompt_token_ids"] for line in objects(tmp_path)] == [[1, 2, 3]] * 2


def test_every_path_is_passed_on_where_a_front_is_told_so_but_those_that_change_adapters(tmp_path):
    with chat_server() as server, Front("127.0.0.1", 0, 5, passes=("/",)) as front:
        front.switch([Route(Backend(server.url, ""))])
        paths = ("/rerank", "/v2/rerank", "/v1/load_lora_adapter")
        assert [ask(front, {"x": 1}, path).status for path in paths] == [200, 200, 404]


def test_a_request_that_is_too_long_is_refused_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("resources.gateway.front.MOST_BYTES", 1_000)
    with chat_server() as server, captured(tmp_path, server) as front:
        assert ask(front, b"x" * 1_200).status == 413 and front.recorder.left_out == {"request_too_long": 1}


def test_failures_broken_streams_and_compressed_answers(tmp_path):
    def words(word, **more):
        return {"model": "m", "messages": [{"role": "user", "content": word}], **more}

    with chat_server() as server, captured(tmp_path, server) as front:
        assert ask(front, words("fail")).status == 500
        with pytest.raises(urllib3.exceptions.ProtocolError):
            ask(front, words("die", stream=True))
        assert ask(front, words("gzip")).status == 200
        assert ask(front, words("call", stream=True)).status == 200
        assert ask(front, b"{no json").status == 400
        assert ask(front, words("text")).data == b"hello"
        assert ask(front, {"input": "x"}, "/v1/embeddings").status == 200
        assert front.recorder.left_out == {"other": 1}
    rows, bad, _, report = ingested(tmp_path)
    assert not bad and report.total.skipped == 2
    said = {json.loads(row["messages"])[0]["content"]: row for row in rows}
    assert (said["fail"]["status"], said["fail"]["error"]) == ("failure", "out of memory")
    died = said["die"]
    assert died["status"] == "failure" and died["error"].startswith("stream_cut") and "broke it off" in died["error"]
    assert json.loads(said["gzip"]["completion"])["content"].startswith("it is")
    assert json.loads(said["call"]["completion"])["tool_calls"] == [TOOL_CALL]
    notes = [line["capture_note"]["not_kept"] for line in objects(tmp_path) if "capture_note" in line]
    assert sorted(notes, key=str) == [{"answer_is_no_json": 1}, {"request_is_no_json": 1}]


def frame_of(meta, request, answer):
    return Frame({"kind": "exchange", "at": 1780300000.0, "status": 200, **meta}, json.dumps(request).encode(), answer)


def sse(*events):
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in events)


def test_calls_of_the_other_apis_are_captured_in_their_own_form(tmp_path):
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}]
    usage = {"input_tokens": 3, "output_tokens": 1}
    whole = {"id": "resp-1", "object": "response", "status": "completed", "model": "m-1", "output": output, "usage": usage}
    stream = {"type": "text/event-stream"}
    responses = frame_of(
        {"form": "responses", **stream},
        {"model": "m", "input": "is it?", "user": "ann"},
        sse({"type": "response.created", "response": {"id": "resp-1"}}, {"type": "response.completed", "response": whole}),
    )
    cut = frame_of(
        {"form": "responses", "problem": "the client left", **stream},
        {"model": "m", "input": "and now?"},
        sse({"type": "response.created", "response": {"id": "resp-2"}}),
    )
    asked = {"model": "c", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    asked["metadata"] = {"user_id": "user_1_account_2_session_s-9"}
    message = {"id": "msg-1", "type": "message", "role": "assistant", "model": "c-1", "content": []}
    messages = frame_of(
        {"form": "messages", "latency_ms": 5.0, **stream},
        asked,
        sse(
            {"type": "message_start", "message": {**message, "usage": {"input_tokens": 3}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ),
    )
    (tmp_path / "logs").mkdir()
    lines = [json.dumps(record_of(each)) + "\n" for each in (responses, cut, messages)]
    (tmp_path / "logs" / "a.jsonl").write_text("".join(lines))
    rows, bad, *_ = ingested(tmp_path)
    assert not bad
    said = {row["request_id"]: row for row in rows}
    assert json.loads(said["resp-1"]["completion"])["content"] == "yes" and said["resp-1"]["user_hash"] == keyed_hash("ann")
    assert said["resp-2"]["status"] == "failure" and "the client left" in said["resp-2"]["error"]
    last = said["msg-1"]
    assert json.loads(last["completion"])["content"] == "hello" and last["source_format"] == "anthropic"
    assert (last["session_id"], last["user_hash"], last["latency_ms"]) == ("s-9", keyed_hash("user_1_account_2"), 5.0)


def test_an_answer_that_repeats_who_asked_is_written_without(tmp_path):
    who = {"user": "ann@example.org", "metadata": {"customer": "ACME"}, "prompt_cache_key": "cache-7"}
    asked = {"model": "m", "input": "hi", **who}
    repeated = {"id": "resp-1", "status": "completed", "model": "m-1", "output": [], **who, "safety_identifier": None}
    event = sse({"type": "response.completed", "response": repeated})
    for meta, answer in (({}, json.dumps(repeated).encode()), ({"type": "text/event-stream"}, event)):
        record = record_of(frame_of({"form": "responses", **meta}, asked, answer))
        assert record["response"] == {"id": "resp-1", "status": "completed", "model": "m-1", "output": []}
        assert record["user_hash"] == keyed_hash("ann@example.org") and record["session_id"] == "cache-7"
        assert "ann@" not in json.dumps(record) and "ACME" not in json.dumps(record)


@pytest.mark.parametrize(
    ("body", "compressed"),
    [
        ({"metadata": {"conversation_id": "{}"}}, False),
        ({"metadata": {"user_id": "user_1_account_2_session_{}"}}, False),
        ({"prompt_cache_key": "{}", "user": "ann"}, False),
        ({"metadata": {"session_id": "{}"}}, True),
    ],
)
def test_a_session_is_sampled_as_a_whole_by_the_name_that_its_record_has(tmp_path, body, compressed):
    (tmp_path / "journal").mkdir()
    recorder = TrafficRecorder(Journal(tmp_path / "journal", "run-1"), KeyRules(default=KeyRule(sample=0.5)))

    def kept(session):
        asked = json.dumps(body).replace("{}", session).encode()
        headers = {"Content-Encoding": "gzip"} if compressed else {}
        request = SimpleNamespace(method="POST", path="/v1/messages", headers=headers)
        return [recorder.begins(request, gzip.compress(asked) if compressed else asked) is not None for _ in range(6)]

    found = [kept(str(number)) for number in range(40)]
    assert all(len(set(each)) == 1 for each in found) and {each[0] for each in found} == {True, False}


def test_a_sample_holds_sessions_of_a_canary_too():
    canary = [session for session in map(str, range(4_000)) if place_of(session) >= 0.9]
    kept = sum(KeyRule(sample=0.5).samples(session) for session in canary)
    assert len(canary) / 2 - 60 < kept < len(canary) / 2 + 60


def test_a_server_that_is_down_is_said_in_words_and_captured_as_a_failure(tmp_path):
    with captured(tmp_path, "http://127.0.0.1:9") as front:
        said = ask(front)
        assert said.status == 503 and "the server does not answer" in said.data.decode()
    (row,), bad, *_ = ingested(tmp_path)
    assert not bad and (row["status"], row["error"]) == ("failure", "the server does not answer")


def test_a_full_journal_says_what_it_does_not_keep_though_it_stays_full(tmp_path, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr("resources.gateway.journal.time.monotonic", lambda: now[0])
    journal = Journal(tmp_path, "run-1", most_bytes=200)
    assert journal.append({"kind": "exchange"}, b"x" * 100)

    def told():
        """By now, as another process would find it after a kill."""
        paths = [path for kind in (READY, OPEN) for path in segments(tmp_path, kind)]
        return [frame.meta["not_kept"] for path in paths for frame in frames(path) if frame.meta["kind"] == "note"]

    for second in range(1, 100):
        assert not journal.append({"kind": "exchange"}, b"y" * 400)
        now[0] += 0.1
        journal.tick()
        now[0] += 0.9
        assert sum(each["journal_full"] for each in told()) >= second - 60
    assert 5 <= len(told()) <= 9  # after pauses that grow


def test_keys_decide_what_is_kept_and_are_written_nowhere(tmp_path):
    hashed = hashlib.sha256(KEY.encode()).hexdigest()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  {hashed}: {{keep: false}}\n  {'a' * 64}: {{sample: 0.5, client: team}}\n")
    rules = read_rules(path)
    with chat_server() as server, captured(tmp_path, server, rules) as front:
        assert ask(front).status == 200
        assert json.loads(ask(front, {"id": "x", "value": 1}, "/feedback").data)["kept"] is False
        assert front.journal.written == 0 and front.recorder.left_out["zero_retention"] == 1
        ask(front, Authorization="Bearer another")
    assert len(objects(tmp_path)) == 1 and not objects(tmp_path, "feedback")
    assert hashed not in json.dumps(objects(tmp_path)) and "another" not in json.dumps(objects(tmp_path))
    half = rules.of_hash("a" * 64)
    kept = {session for session in map(str, range(200)) if half.samples(session)}
    assert 60 < len(kept) < 140 and kept == {session for session in map(str, range(200)) if half.samples(session)}
    for text, words in (
        (f"keys: {{{KEY}: {{keep: false}}}}", "64 hex digits"),
        ("default: {sample: 2}", "less than or equal to 1"),
        ("[", "no YAML"),
        ("defualt: {}", "defualt"),
    ):
        path.write_text(text)
        with pytest.raises(CaptureError, match=words) as error:
            read_rules(path)
        assert KEY not in str(error.value)


def test_a_record_of_a_sampled_key_says_which_share_was_kept(tmp_path):
    rules = KeyRules(default=KeyRule(sample=0.999))
    with chat_server() as server, captured(tmp_path, server, rules, sampling={"top_p": 0.8}) as front:
        assert ask(front).status == 200 and ask(front, {**ASKED, "stream": True}).status == 200
    rows, _, _, _ = ingested(tmp_path)
    params = [json.loads(row["params"]) for row in rows]
    assert [(each["kept_share"], each["top_p"]) for each in params] == [(0.999, 0.8)] * 2


def test_what_does_not_fit_is_counted_and_told_in_the_objects(tmp_path):
    with chat_server() as server, captured(tmp_path, server, most_bytes=2_000) as front:
        assert [ask(front).status for _ in range(5)] == [200] * 5
        assert front.journal.written + front.journal.lost["journal_full"] == 5 and front.journal.lost["journal_full"] >= 3
        lost = front.journal.lost["journal_full"]
    *_, report = ingested(tmp_path)
    [note] = [line["capture_note"] for line in objects(tmp_path) if "capture_note" in line]
    assert note["not_kept"] == {"journal_full": lost} and note["since"] <= note["until"] and report.total.skipped == 1


@pytest.mark.parametrize(
    "body, words",
    [
        (b"{", "no JSON object"),
        (b"[]", "no JSON object"),
        (b'{"value": 1}', "id is missing"),
        (b'{"id": "a"}', "value is missing"),
        (b'{"id": 5, "value": 1}', "id is a text"),
        (b'{"id": "a", "value": [1]}', "value is a number"),
        (b'{"id": "a", "value": NaN}', "value is a number"),
        (b'{"id": "a", "value": 1, "comment": {}}', "comment is a text"),
        (b'{"id": "a", "value": 1, "comment": "' + b"x" * 300_000 + b'"}', "256 KiB"),
    ],
)
def test_what_is_no_feedback_is_refused_in_words(tmp_path, body, words):
    with captured(tmp_path, "http://127.0.0.1:9") as front:
        said = ask(front, body, "/feedback")
    assert said.status == 400 and words in said.data.decode()


def test_a_torn_journal_gives_every_whole_frame_and_says_what_is_damaged(tmp_path):
    journal = Journal(tmp_path, "run-1")
    for number in range(3):
        journal.append({"kind": "feedback", "at": 1.0, "n": number}, b"q", [b"a", b"b"])
    journal.close()
    [segment] = segments(tmp_path, READY)
    content = segment.read_bytes()
    segment.write_bytes(content[:-1])
    assert [frame.meta.get("n") for frame in frames(segment)] == [0, 1, None]
    middle = content.index(b"mrc1", 5) + 30
    segment.write_bytes(content[:middle] + b"\0\0" + content[middle + 2 :])
    found = list(frames(segment))
    assert [frame.meta.get("n") for frame in found] == [0, 2, None] and found[-1].meta["not_kept"] == {"damaged": 1}
    assert (found[0].request, found[0].answer) == (b"q", b"ab")


def test_a_disk_that_is_full_leaves_no_half_frame_and_is_told_later(tmp_path, monkeypatch):
    journal, write = Journal(tmp_path, "run-1"), os.writev
    assert journal.append({"kind": "feedback", "at": 1.0, "n": 0})
    monkeypatch.setattr(os, "writev", lambda handle, parts: write(handle, [b"".join(parts)[:9]]))
    assert not journal.append({"kind": "feedback", "at": 1.0, "n": 1})

    def refuse(handle, parts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", refuse)
    assert not journal.append({"kind": "feedback", "at": 1.0, "n": 2}) and journal.lost == {"disk": 2}
    monkeypatch.setattr(os, "writev", write)
    assert journal.append({"kind": "feedback", "at": 1.0, "n": 3}) and journal.written == 2
    journal.close()
    found = [frame.meta for frame in frames(segments(tmp_path, READY)[0])]
    assert [meta.get("n") for meta in found] == [0, None, 3] and found[1]["not_kept"] == {"disk": 2}


def test_a_client_that_leaves_is_no_answer_before_it_begins_and_a_broken_one_after(tmp_path):
    with chat_server() as server, captured(tmp_path, server) as front:
        server.gate.clear()
        for body in ({**ASKED, "stream": True}, ASKED):
            server.hold = body is ASKED
            connection = http.client.HTTPConnection(front.url.removeprefix("http://"), timeout=10)
            connection.request("POST", CHAT, json.dumps(body).encode())
            if not server.hold:
                assert connection.getresponse().read(20)
            else:
                waited_for(lambda: len(server.seen) == 2)
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()
        waited_for(lambda: front.recorder.left_out["unanswered"] == 1 and front.journal.written == 1)
        server.gate.set()
    [line] = objects(tmp_path)
    assert "the client left" in line["response"]["error"]["message"] and line["request"]["stream"]


def waited_for(what):
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_store_that_is_away_loses_nothing_and_a_segment_shipped_twice_is_one(tmp_path):
    (tmp_path / "journal").mkdir()
    journal = Journal(tmp_path / "journal", "run-1", segment_bytes=1)
    for number in range(3):
        journal.append({"kind": "feedback", "at": 1.0}, b"", [json.dumps({"response_id": str(number), "value": 1}).encode()])
    place = tmp_path / "logs"
    place.write_text("a file where the store's directory should be")
    shipper = Shipper(tmp_path / "journal", DiskStore(str(place)))
    assert not shipper.ship_all() and shipper.problem and len(segments(tmp_path / "journal", READY)) == 3
    place.unlink()
    first = segments(tmp_path / "journal", READY)[0]
    again = first.read_bytes()
    assert shipper.ship_all(keep_trying=False) and not shipper.problem and shipper.records == 3
    first.write_bytes(again)  # killed after the objects were written, before the segment was deleted
    assert shipper.ship_all(keep_trying=False)
    assert sorted(line["response_id"] for line in objects(tmp_path, "feedback")) == ["0", "1", "2"]


def test_calls_that_litellm_reports_are_the_same_records(tmp_path):
    (tmp_path / "journal").mkdir()
    journal = Journal(tmp_path / "journal", "run-1")
    calls = LoggedCalls()
    calls.capture = SimpleNamespace(recorder=TrafficRecorder(journal, KeyRules()), journal=journal)
    begun, spoke, ended = (datetime(2026, 6, 1, 10, 0, second) for second in (0, 1, 3))
    message = {"role": "assistant", "content": "yes", "provider_specific_fields": None}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "provider_specific_fields": {"token_ids": [7]}}
    answer = {"id": "r-1", "created": 1, "model": "m-1", "object": "chat.completion", "usage": USAGE}
    answer |= {"prompt_token_ids": [1, 2], "choices": [choice]}
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "return_token_ids": True}
    metadata = {"user_api_key_hash": "f" * 64, "user_api_key_alias": "team", "requester_metadata": {"session_id": "s-1"}}
    kwargs = {
        "call_type": "acompletion",
        "model": "m",
        "messages": MESSAGES,
        "litellm_call_id": "c-1",
        "user": "ann@example.org",
        "optional_params": {"temperature": 0.3, "stream": True, "api_key": KEY, "extra_body": extra},
        "litellm_params": {"api_key": KEY, "metadata": metadata},
        "completion_start_time": spoke,
        "response_cost": 0.25,
        "cache_hit": False,
    }
    calls.log_success_event(kwargs, SimpleNamespace(model_dump=lambda: answer), begun, ended)
    calls.log_failure_event({**kwargs, "litellm_call_id": "c-2", "exception": ValueError("too long")}, None, begun, ended)
    calls.log_success_event({"call_type": "aembedding", "messages": None}, None, begun, ended)
    journal.close()
    [segment] = segments(tmp_path / "journal", READY)
    ship(segment, DiskStore(str(tmp_path / "logs")))
    rows, bad, _, _ = ingested(tmp_path)
    assert not bad and calls.capture.recorder.left_out == {"other": 1}
    row, failed = sorted(rows, key=lambda each: each["status"], reverse=True)
    assert row["request_id"] == "r-1" and row["alias_id"] == "c-1" and row["session_id"] == "s-1" and row["client"] == "team"
    assert json.loads(row["messages"]) == MESSAGES and json.loads(row["completion"])["content"] == "yes"
    assert row["prompt_token_ids"] == [1, 2] and row["completion_token_ids"] == [7]
    assert json.loads(row["params"]) == {"temperature": 0.3, "stream": True, "chat_template_kwargs": {"enable_thinking": False}}
    assert (row["latency_ms"], row["ttft_ms"], row["cost"], row["cache_hit"]) == (3000, 1000, 0.25, False)
    assert row["user_hash"] == keyed_hash("ann@example.org") and row["ts"].timestamp() == begun.timestamp()
    assert failed["error"] == "ValueError: too long"
    assert KEY not in json.dumps(objects(tmp_path)) and "f" * 64 not in json.dumps(objects(tmp_path))


def test_a_request_that_ends_its_server_is_sent_once_where_a_front_is_told_so(tmp_path):
    def ends(times):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(5)
            with Front("127.0.0.1", 0, 5, most_sent=times) as front:
                front.switch([Route(Backend(f"http://127.0.0.1:{listening.getsockname()[1]}", ""))])
                taken = []

                def take():
                    while True:
                        try:
                            connection, _ = listening.accept()
                        except OSError:
                            return
                        taken.append(connection.recv(65_536))
                        connection.close()

                threading.Thread(target=take, daemon=True).start()
                assert ask(front).status == 503
                return len(taken)

    assert (ends(1), ends(3)) == (1, 3)


@pytest.mark.parametrize(
    ("host", "to"),
    [("127.0.0.1", "http://localhost:8080"), ("0.0.0.0", "http://127.0.0.1:8080/v1"), ("localhost", "http://127.0.0.1:8080")],
)
def test_a_capture_layer_does_not_ask_itself(host, to):
    with pytest.raises(CaptureError, match="is the address that this command listens at"):
        require_another_server(to, host, 8080)
    require_another_server(to, host, 8081)


def test_two_rules_for_a_key_are_refused(tmp_path):
    path = tmp_path / "keys.yaml"
    for again in ("a" * 64, "A" * 64):
        path.write_text(f"keys:\n  {'a' * 64}: {{keep: false}}\n  {again}: {{keep: true}}\n")
        with pytest.raises(CaptureError, match="line 3 gives a name for the second time; keep one of them") as error:
            read_rules(path)
        assert "aaaa" not in str(error.value).lower()
    path.write_text(f"keys: {{{'A' * 64}: {{keep: false}}}}")
    assert not read_rules(path).of_hash("a" * 64).keep
    path.write_text(f"keys: {{{'a' * 64}: {{kep: false}}}}")
    with pytest.raises(CaptureError, match=r"keys.aaaaaaaa....kep does not exist; did you mean keep\?"):
        read_rules(path)


def test_what_cannot_be_captured_is_said_before_it_starts(tmp_path):
    for to in ("localhost:8000", "ftp://x", "http://", "http://user:pass@host"):
        with pytest.raises(CaptureError, match="--to"):
            server_url(to)
    assert server_url("http://h:1/v1/") == "http://h:1" and server_url("https://h/openai") == "https://h/openai"
    with pytest.raises(CaptureError, match="gs:// is no place"):
        open_store("gs://bucket")
    (tmp_path / "file").write_text("[1]")
    with pytest.raises(CaptureError, match="is a file"):
        open_store(str(tmp_path / "file"))
    with pytest.raises(CaptureError, match=r"generation_config\.json"):
        read_sampling(tmp_path / "file")
    with pytest.raises(CaptureError, match="journal"):
        Capture(CaptureSettings(str(tmp_path / "logs"), tmp_path / "file" / "journal")).__enter__()
    with pytest.raises(CaptureError, match="pip install litellm"):
        capture_callback(str(tmp_path / "logs"))
