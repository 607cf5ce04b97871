"""Requests that come while no server answers wait for one, within bounds."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from front_client import CHAT, ask, wait_for

from resources.gateway.front import Front
from resources.gateway.routes import Backend, Route


@pytest.fixture
def front():
    with Front("127.0.0.1", 0, drain_s=5, wait_s=10) as opened:
        yield opened


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def waiting(front):
    return front._passing.waiting.requests


def test_requests_that_come_before_a_server_wait_for_it(front, servers, threads):
    asked = [threads.submit(ask, front, body) for body in (b"{}", b'{"stream": 1}')]
    wait_for(lambda: waiting(front) == 2)
    front.switch([Route(servers("new").backend)])
    assert [each.result().data for each in asked] == [b"new", b"new0 new1 new2 "]
    assert front.refused == waiting(front) == 0


def test_a_request_whose_server_dies_before_the_first_byte_is_answered_by_the_next_one(front, servers, threads):
    dying = servers("dying", dies="at once", healthy=False)
    front.switch([Route(dying.backend)])
    asked = threads.submit(ask, front)
    wait_for(lambda: waiting(front) == 1)
    assert len(dying.seen) == 1
    front.switch([Route(servers("next").backend)])
    assert asked.result().data == b"next"


def test_a_server_that_refuses_connections_is_asked_again_until_it_listens(front, servers, threads):
    gone = servers("gone")
    gone.stop()
    front.switch([Route(gone.backend)])
    asked = threads.submit(ask, front)
    wait_for(lambda: waiting(front) == 1)
    servers("back", port=gone.port)
    assert asked.result().data == b"back"


def test_a_request_that_ends_its_servers_is_sent_three_times_at_most(front, servers):
    fatal = servers("fatal", dies="at once")
    front.switch([Route(fatal.backend)])
    began = time.monotonic()
    assert ask(front).status == 503
    assert len(fatal.seen) == 3 and time.monotonic() - began < 2


def test_after_the_time_the_client_hears_that_there_is_no_server(servers):
    with Front("127.0.0.1", 0, drain_s=5, wait_s=0.3) as front:
        began = time.monotonic()
        said = ask(front)
        assert (said.status, said.headers["Retry-After"], front.refused) == (503, "2", 1)
        assert 0.3 <= time.monotonic() - began < 2
        assert json.loads(said.data)["error"]["message"] == "no such release answers now"


def test_what_asks_for_the_state_of_a_server_does_not_wait(front, servers):
    for path in ("/v1/models", "/metrics", "/health"):
        assert ask(front, None, path=path, method="GET").status == 503
    front.switch([Route(servers("one").backend)])
    assert ask(front, headers={"X-Millrace-Release": "another"}).status == 503


def test_waiting_requests_hold_a_bounded_number_of_bytes(front, servers, threads):
    front._passing.waiting.most_bytes = 100
    asked = threads.submit(ask, front, b" " * 80)
    wait_for(lambda: waiting(front) == 1)
    assert ask(front, b" " * 40).status == 503
    front.switch([Route(servers("new").backend)])
    assert asked.result().data == b"new"


def test_a_client_that_leaves_waits_no_more(front):
    connection = socket.create_connection(("127.0.0.1", front.port))
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % CHAT.encode())
    wait_for(lambda: waiting(front) == 1)
    connection.close()
    wait_for(lambda: waiting(front) == 0)


def test_the_end_of_the_front_refuses_who_waits(threads):
    began = time.monotonic()
    with Front("127.0.0.1", 0, drain_s=5, wait_s=10) as front:
        asked = threads.submit(ask, front)
        wait_for(lambda: waiting(front) == 1)
    assert asked.result().status == 503 and time.monotonic() - began < 4


def test_an_error_of_a_server_that_is_no_longer_healthy_is_not_passed_on(front, servers, threads):
    broken = servers("broken", fails=500, healthy=False)
    front.switch([Route(broken.backend)])
    asked = threads.submit(ask, front)
    wait_for(lambda: waiting(front) == 1)
    assert len(broken.seen) == 1
    front.switch([Route(servers("good").backend)])
    assert asked.result().data == b"good"


@pytest.mark.parametrize(("healthy", "release"), [(True, "busy"), (False, "")])
def test_other_errors_are_passed_on(front, servers, healthy, release):
    broken = servers("broken", fails=500, healthy=healthy)
    front.switch([Route(Backend(broken.backend.url, release))])
    assert ask(front).status == 500 and len(broken.seen) == 1
