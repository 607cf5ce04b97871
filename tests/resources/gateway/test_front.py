"""The front: requests are passed on untouched, and a switch of servers loses none."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3
from front_client import CHAT, ask, wait_for

from resources.gateway.front import Front, FrontError
from resources.gateway.pass_through import RELEASE_HEADER
from resources.gateway.routes import Backend, Naming, NoBackend, NoModelNamedError, Route, Routes, model_of, session_of


@pytest.fixture
def front():
    with Front("127.0.0.1", 0, drain_s=5) as opened:
        yield opened


def test_an_answer_comes_as_its_server_gave_it_with_the_name_of_its_release(front, servers):
    old = servers("old")
    front.switch([Route(old.backend)])
    said = ask(front, b'{"a": 1}', {"Authorization": "Bearer k", "Connection": "X-Hop", "X-Hop": "1"}, f"{CHAT}?x=%2F&y=a+b")
    assert (said.status, said.data, said.headers["X-Kept"], said.headers[RELEASE_HEADER]) == (200, b"old", "yes", "old")
    [(path, headers, body)] = old.seen
    assert (path, body, headers["Authorization"]) == (f"{CHAT}?x=%2F&y=a+b", b'{"a": 1}', "Bearer k")
    assert "X-Hop" not in headers and "User-Agent" in headers
    assert ask(front, path="/version", method="GET", body=None).data == b"old"


def test_without_a_server_the_front_says_so_in_the_form_that_clients_repeat(front, servers):
    said = ask(front)
    assert (said.status, said.headers["Retry-After"]) == (503, "2")
    assert json.loads(said.data)["error"]["message"] == "no such release answers now"
    assert ask(front, path="/health", method="GET", body=None).status == 503
    front.switch([Route(servers("old").backend)])
    health = ask(front, path="/health", method="GET", body=None)
    releases = [{"release": "old", "share": 1.0, "in_flight": 0}]
    assert (health.status, json.loads(health.data)) == (200, {"status": "ok", "releases": releases})
    adapters = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter/", "/v1/load%5Flora_adapter")
    for path in (*adapters, "/v1/%2e%2e/collective_rpc", "/collective_rpc", "/"):
        assert ask(front, path=path).status == 404


def test_a_switch_leaves_requests_where_they_are_and_sends_new_ones_to_the_new_server(front, servers):
    old, new = servers("old"), servers("new")
    front.switch([Route(old.backend)])
    old.gate.clear()
    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(ask, front, body) for body in [b"{}", b'{"stream": 1}'] * 3]
        wait_for(lambda: old.backend.in_flight == 6)
        front.switch([Route(new.backend)])
        assert [ask(front).data for _ in range(3)] == [b"new"] * 3
        assert old.backend.in_flight == 6
        old.gate.set()
        wait_for(lambda: not old.backend.in_flight)
        assert sorted(each.result().data for each in running) == [b"old"] * 3 + [b"old0 old1 old2 "] * 3
    old.stop()
    assert ask(front).data == b"new" and front.refused == front.broken == 0


def test_a_stream_arrives_part_by_part(front, servers):
    old = servers("old")
    front.switch([Route(old.backend)])
    old.gate.clear()
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=5)
    connection.request("POST", CHAT, b'{"stream": 1}')
    answer = connection.getresponse()
    assert answer.read1() == b"old0 "
    old.gate.set()
    assert answer.read() == b"old1 old2 "


def test_a_request_is_sent_again_where_its_server_refuses_or_breaks_off_before_the_first_byte(front, servers):
    gone, dying, good = servers("gone"), servers("dying", dies="at once"), servers("good")
    gone.stop()
    front.switch([Route(gone.backend, 0.98), Route(dying.backend, 0.01), Route(good.backend, 0.01)])
    assert {ask(front).data for _ in range(10)} == {b"good"}
    front.switch([Route(dying.backend)])
    assert ask(front).status == 503 and front.refused == 1
    assert (gone.backend.in_flight, dying.backend.in_flight) == (0, 0)


def test_an_answer_that_breaks_off_in_the_middle_breaks_off_for_the_client_too(front, servers):
    front.switch([Route(servers("old", dies="later").backend)])
    with pytest.raises(urllib3.exceptions.ProtocolError):
        ask(front, b'{"stream": 1}')
    assert front.broken == 1


def test_a_client_that_leaves_ends_its_request_at_the_server(front, servers):
    old = servers("old")
    front.switch([Route(old.backend)])
    old.gate.clear()
    connection = socket.create_connection(("127.0.0.1", front.port))
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % CHAT.encode())
    wait_for(lambda: old.backend.in_flight == 1)
    connection.close()
    wait_for(lambda: old.backend.in_flight == 0)


def test_the_end_of_the_front_waits_for_answers(servers):
    old = servers("old")
    old.gate.clear()
    with ThreadPoolExecutor(1) as threads:
        with Front("127.0.0.1", 0, drain_s=5) as front:
            front.switch([Route(old.backend)])
            running = threads.submit(ask, front)
            wait_for(lambda: old.backend.in_flight == 1)
            threading.Timer(0.3, old.gate.set).start()
        assert running.result().data == b"old"


def test_without_time_to_drain_the_front_ends_at_once(servers):
    old = servers("old")
    old.gate.clear()
    with ThreadPoolExecutor(1) as threads:
        front = Front("127.0.0.1", 0, drain_s=0)
        with front:
            front.switch([Route(old.backend)])
            running = threads.submit(ask, front)
            wait_for(lambda: old.backend.in_flight == 1)
            began = time.monotonic()
        assert time.monotonic() - began < 5  # it was ten seconds and a TimeoutError
        old.gate.set()
        assert running.exception() is not None


def test_a_taken_port_is_named(front):
    with (
        pytest.raises(FrontError, match=rf"127.0.0.1:{front.port} cannot be listened on \(another program listens there\)"),
        Front("127.0.0.1", front.port),
    ):
        pass


def test_sessions_stay_with_a_server_and_are_shared_out():
    stable, canary = Backend("a", "1"), Backend("b", "2")
    routes = Routes([Route(stable, 0.8), Route(canary, 0.2)])
    chosen = [routes.choose(f"session {number}") for number in range(2_000)]
    assert chosen == [routes.choose(f"session {number}") for number in range(2_000)]
    assert 300 < chosen.count(canary) < 500
    assert 300 < sum(routes.choose(None) is canary for _ in range(2_000)) < 500
    assert routes.choose(json.loads('"\\ud800"')) in (stable, canary)
    assert routes.choose("session 1", without=[stable]) is canary
    assert routes.choose("session 1", release="2") is canary
    with pytest.raises(NoBackend):
        routes.choose("session 1", release="3")
    with pytest.raises(NoBackend):
        Routes().choose("session 1")


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({"X-Session-Id": "h"}, b'{"session_id": "b"}', "h"),
        ({}, b'{"session_id": "b", "user": "u"}', "b"),
        ({}, b'{"metadata": {"session_id": "m"}, "user": "u"}', "m"),
        ({}, b'{"prompt_cache_key": "p", "user": "u"}', "p"),
        ({}, b'{"user": "u"}', "u"),
        ({}, b'{"user": 7, "metadata": []}', None),
        ({}, b"[]", None),
        ({}, b"\xff", None),
        ({}, b"", None),
    ],
)
def test_the_session_of_a_request(headers, body, session):
    assert session_of(headers, body) == session


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
    rest = {"messages": [{"content": "\ud83d tutor"}], "n": 1.5}
    asked = json.loads(NAMING.asked(json.dumps({"model": "tutor", **rest}).encode()))
    assert asked == {"model": "tutor@3f2a", **rest}


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


@pytest.fixture
def waiting_front():
    with Front("127.0.0.1", 0, drain_s=5, wait_s=10) as opened:
        yield opened


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def waiting(waiting_front):
    return waiting_front._passing.waiting.requests


def test_requests_that_come_before_a_server_wait_for_it(waiting_front, servers, threads):
    asked = [threads.submit(ask, waiting_front, body) for body in (b"{}", b'{"stream": 1}')]
    wait_for(lambda: waiting(waiting_front) == 2)
    waiting_front.switch([Route(servers("new").backend)])
    assert [each.result().data for each in asked] == [b"new", b"new0 new1 new2 "]
    assert waiting_front.refused == waiting(waiting_front) == 0


def test_a_request_whose_server_dies_before_the_first_byte_is_answered_by_the_next_one(waiting_front, servers, threads):
    dying = servers("dying", dies="at once", healthy=False)
    waiting_front.switch([Route(dying.backend)])
    asked = threads.submit(ask, waiting_front)
    wait_for(lambda: waiting(waiting_front) == 1)
    assert len(dying.seen) == 1
    waiting_front.switch([Route(servers("next").backend)])
    assert asked.result().data == b"next"


def test_a_server_that_refuses_connections_is_asked_again_until_it_listens(waiting_front, servers, threads):
    gone = servers("gone")
    gone.stop()
    waiting_front.switch([Route(gone.backend)])
    asked = threads.submit(ask, waiting_front)
    wait_for(lambda: waiting(waiting_front) == 1)
    servers("back", port=gone.port)
    assert asked.result().data == b"back"


def test_a_request_that_ends_its_servers_is_sent_three_times_at_most(waiting_front, servers):
    fatal = servers("fatal", dies="at once")
    waiting_front.switch([Route(fatal.backend)])
    began = time.monotonic()
    assert ask(waiting_front).status == 503
    assert len(fatal.seen) == 3 and time.monotonic() - began < 2


def test_after_the_time_the_client_hears_that_there_is_no_server(servers):
    with Front("127.0.0.1", 0, drain_s=5, wait_s=0.3) as waiting_front:
        began = time.monotonic()
        said = ask(waiting_front)
        assert (said.status, said.headers["Retry-After"], waiting_front.refused) == (503, "2", 1)
        assert 0.3 <= time.monotonic() - began < 2
        assert json.loads(said.data)["error"]["message"] == "no such release answers now"


def test_what_asks_for_the_state_of_a_server_does_not_wait(waiting_front, servers):
    for path in ("/v1/models", "/metrics", "/health"):
        assert ask(waiting_front, None, path=path, method="GET").status == 503
    waiting_front.switch([Route(servers("one").backend)])
    assert ask(waiting_front, headers={"X-Millrace-Release": "another"}).status == 503


def test_waiting_requests_hold_a_bounded_number_of_bytes(waiting_front, servers, threads):
    waiting_front._passing.waiting.most_bytes = 100
    asked = threads.submit(ask, waiting_front, b" " * 80)
    wait_for(lambda: waiting(waiting_front) == 1)
    assert ask(waiting_front, b" " * 40).status == 503
    waiting_front.switch([Route(servers("new").backend)])
    assert asked.result().data == b"new"


def test_a_client_that_leaves_waits_no_more(waiting_front):
    connection = socket.create_connection(("127.0.0.1", waiting_front.port))
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % CHAT.encode())
    wait_for(lambda: waiting(waiting_front) == 1)
    connection.close()
    wait_for(lambda: waiting(waiting_front) == 0)


def test_the_end_of_the_front_refuses_who_waits(threads):
    began = time.monotonic()
    with Front("127.0.0.1", 0, drain_s=5, wait_s=10) as waiting_front:
        asked = threads.submit(ask, waiting_front)
        wait_for(lambda: waiting(waiting_front) == 1)
    assert asked.result().status == 503 and time.monotonic() - began < 4


def test_an_error_of_a_server_that_is_no_longer_healthy_is_not_passed_on(waiting_front, servers, threads):
    broken = servers("broken", fails=500, healthy=False)
    waiting_front.switch([Route(broken.backend)])
    asked = threads.submit(ask, waiting_front)
    wait_for(lambda: waiting(waiting_front) == 1)
    assert len(broken.seen) == 1
    waiting_front.switch([Route(servers("good").backend)])
    assert asked.result().data == b"good"


@pytest.mark.parametrize(("healthy", "release"), [(True, "busy"), (False, "")])
def test_other_errors_are_passed_on(waiting_front, servers, healthy, release):
    broken = servers("broken", fails=500, healthy=healthy)
    waiting_front.switch([Route(Backend(broken.backend.url, release))])
    assert ask(waiting_front).status == 500 and len(broken.seen) == 1
