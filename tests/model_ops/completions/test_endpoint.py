"""The one client of servers that answer: addresses, keys, repeats, pauses, proxies, pace, cost, and what a completion says."""

import contextlib
import json
import socket
import threading
import time

import pytest
from loopback import loopback
from pydantic import ValidationError

from model_ops.completions import endpoint as module
from model_ops.completions.endpoint import Budget, BudgetError, Endpoint, RateLimiter, read_chat, retry_after
from model_ops.completions.openai_api import OpenAiApi
from model_ops.completions.served import ServedModel
from model_ops.completions.settings import EndpointSettings, PriceSettings, plain_address
from model_ops.jobs import ModelError


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)


def completion(text, reason="stop", prompt=10, answer=5, **message):
    return {
        "choices": [{"message": {"role": "assistant", "content": text, **message}, "finish_reason": reason}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer},
    }


def endpoint_of(address, **changes):
    settings = {"base_url": address, "model": "m", "retries": 2, "concurrency": 2, "timeout_s": 5, **changes}
    return Endpoint(EndpointSettings(**settings), "teacher")


def chats(answer, count=1, **changes):
    """(replies, requests, endpoint) of so many chats against a server."""
    with loopback(answer) as (address, seen), endpoint_of(address, **changes) as endpoint:
        return (
            list(endpoint.each(endpoint.chat, [{"messages": [], "number": number} for number in range(count)])),
            seen,
            endpoint,
        )


@pytest.mark.parametrize(
    "address", ["localhost:8000", "ftp://x/v1", "http://", "http://me:secret@x/v1", "https://x/v1?key=secret"]
)
def test_addresses_that_are_refused(address):
    with pytest.raises(ValidationError, match=r"base_url\n.*a server's address"):
        EndpointSettings(base_url=address, model="m")
    with pytest.raises(ModelError, match="a server's address") as caught:
        ServedModel(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("port", ["99999", "x"])
def test_an_address_with_no_port_that_exists_is_refused(port):
    with pytest.raises(ValueError, match="from 0 to 65535"):
        plain_address(f"http://host:{port}/v1")


def test_an_address_has_no_slash_at_its_end():
    assert plain_address("https://host:1/v1/") == "https://host:1/v1"


def test_a_key_comes_from_the_environment_only(monkeypatch):
    for value in ("", " "):
        monkeypatch.setenv("TUTOR_KEY", value)
        with pytest.raises(ModelError, match="teacher: the environment variable TUTOR_KEY holds no key"):
            endpoint_of("http://x/v1", api_key_env="TUTOR_KEY")
    monkeypatch.setenv("TUTOR_KEY", " sesame\n")
    _, seen, _ = chats(lambda *_: (200, completion("x")), api_key_env="TUTOR_KEY")
    assert seen[0]["headers"]["Authorization"] == "Bearer sesame"
    assert "Authorization" not in chats(lambda *_: (200, completion("x")))[1][0]["headers"]
    with pytest.raises(ValidationError, match="not the name of an environment variable") as caught:
        EndpointSettings(base_url="http://x/v1", model="m", api_key_env="sk-1234")
    assert "sk-1234" not in str(caught.value.errors(include_input=False))


BAD = {
    "busy": (429, {}),
    "no reply": (0, completion("x")),
    "HTML instead of JSON": (200, "<!DOCTYPE html><html>login</html>"),
    "not JSON": (200, '{"choices": [{"mess'),
    "no choices": (200, {"choices": []}),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_reply_that_may_come_better_is_asked_for_again(kind):
    [reply], seen, endpoint = chats(lambda body, number: BAD[kind] if number < 3 else (200, completion("x")))
    assert (reply.text, len(seen), endpoint.failed) == ("x", 3, {kind: 2})


@pytest.mark.parametrize("kind", BAD)
def test_a_server_that_stays_bad_is_given_up_before_everything_was_asked(kind):
    replies, seen, endpoint = chats(lambda *_: BAD[kind], count=12, retries=1)
    assert endpoint.gone and len(seen) < 24 and {reply.retryable for reply in replies} == {True}


@pytest.mark.parametrize(("retries", "asked"), [(2, 3), (0, 1)])
def test_a_server_without_a_chat_is_asked_again_as_well(retries, asked):
    with loopback(lambda *_: (503, {})) as (address, seen), endpoint_of(address, retries=retries) as endpoint:
        with pytest.raises(ModelError, match=r"teacher: .*/completions refuses with HTTP 503: free it"):
            endpoint.content("POST", "/completions", {"prompt": [1]}, "free it")
        assert [request["body"] for request in seen] == [{"prompt": [1]}] * asked


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_refusal_ends_the_step_at_once_and_names_what_to_check(status):
    said = rf"teacher: .* refuses m \(HTTP {status}\): check base_url, model and api_key_env$"
    seen = []
    with pytest.raises(ModelError, match=said) as caught:
        chats(lambda body, number: seen.append(body) or (status, {"error": {"message": "user text"}}), count=50)
    assert len(seen) <= 4 and "user text" not in str(caught.value)


def test_a_request_that_the_server_does_not_take_is_not_sent_again():
    [reply], seen, _ = chats(lambda *_: (400, {}))
    assert (reply.why, reply.retryable, reply.unreachable, len(seen)) == ("HTTP 400", False, False, 1)


def test_a_pause_is_what_the_server_asks_for_up_to_a_minute(monkeypatch):
    for wanted, longest, least, most in (("1", 60, 1, 5), ("86400", 0.1, 0.1, 5)):
        monkeypatch.setattr(module, "LONGEST_PAUSE_S", longest)
        began, busy = time.monotonic(), (429, {}, {"Retry-After": wanted})
        [reply], *_ = chats(lambda body, number, busy=busy: busy if number == 1 else (200, completion("x")))
        assert reply.text == "x" and least <= time.monotonic() - began < most
    assert (retry_after("7"), retry_after(None), retry_after("soon")) == (7, None, None)
    assert (retry_after("1.5"), retry_after("nan"), retry_after("inf"), retry_after("-1")) == (1.5, None, None, None)
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0


@pytest.mark.parametrize(("retries", "asked"), [(0, 1), (5, 2)])
def test_a_reply_without_an_end_is_given_up(retries, asked):
    """A byte now and then keeps any socket's timeout from passing. Each attempt may be billed, so there are at most two."""
    requests = []
    listening = socket.create_server(("127.0.0.1", 0))

    def drip():
        for _ in range(asked):
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                requests.append(connection.recv(1 << 16))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                for _ in range(200):
                    connection.sendall(b" ")
                    time.sleep(0.05)

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    began = time.monotonic()
    with endpoint_of(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", timeout_s=0.3, retries=retries) as endpoint:
        assert endpoint.chat({"messages": []}).why == "the reply does not end"
    assert time.monotonic() - began < 5 and len(requests) == asked
    thread.join()
    listening.close()


def test_a_reply_without_an_end_counts_as_the_most_that_it_can_have_cost(monkeypatch):
    monkeypatch.setattr(OpenAiApi, "read", lambda self, response, most, seconds: response.close())
    price = PriceSettings(input=0, output=1e6)
    with loopback(lambda *_: (200, {})) as (address, _), endpoint_of(address, retries=0) as endpoint:
        endpoint.budget = Budget(price)
        reply = endpoint.chat({"messages": [], "max_tokens": 10})
    assert (reply.why, reply.cost, endpoint.budget.spent) == ("the reply does not end", 10, 10)


def test_of_a_reply_no_more_is_read_than_its_kind_needs(monkeypatch):
    limits, read = [], OpenAiApi.read
    monkeypatch.setattr(OpenAiApi, "read", lambda self, of, most, seconds: limits.append(most) or read(self, of, most, seconds))
    chats(lambda body, number: (503, {}) if number == 1 else (200, completion("x")))
    with loopback(lambda *_: (200, {})) as (address, _), endpoint_of(address) as endpoint:
        endpoint.content("POST", "/completions", {})
    assert limits == [1 << 20, 16 << 20, 64 << 20]


def test_the_proxy_of_the_environment_is_asked_except_where_it_says_no(monkeypatch):
    with loopback(lambda body, number: (200, "proxied")) as (proxy, seen), loopback(lambda *_: (200, "direct")) as (address, _):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        replies = {}
        for base_url in (address, "http://tutor.invalid/v1"):
            api = OpenAiApi(base_url, api_key=None, connections=1, timeout_s=5)
            replies[base_url] = api.request("POST", "/x", {}).data
            api.close()
    assert replies == {address: b"direct", "http://tutor.invalid/v1": b"proxied"}
    assert [request["path"] for request in seen] == ["http://tutor.invalid/v1/x"] and "Authorization" not in seen[0]["headers"]


def test_calls_reasoning_and_content_in_parts_are_read():
    calls = [{"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    reply = read_chat(json.dumps(completion(None, "tool_calls", reasoning="think", tool_calls=calls)).encode())
    assert reply.message == {"role": "assistant", "content": "", "reasoning_content": "think", "tool_calls": calls}
    parts = [{"type": "text", "text": "42"}, {"type": "text", "text": " it is"}]
    assert read_chat(json.dumps(completion(parts)).encode()).message["content"] == "42 it is"


@pytest.mark.parametrize(
    ("content", "failure", "text"),
    [
        (completion("half a sen", "length"), "cut by max_tokens", "half a sen"),
        (completion("", "content_filter"), "filtered by the server", ""),
        (completion("  "), "empty", "  "),
        (completion([{"type": "image_url"}]), "no choices", None),
    ],
)
def test_an_answer_that_cannot_be_used_says_why_and_is_not_asked_for_again(content, failure, text):
    [reply], seen, _ = chats(lambda *_: (200, content))
    assert (reply.message, reply.failure, reply.text, reply.answer_tokens, len(seen)) == (None, failure, text, 5, 1)


def test_reservations_of_many_threads_never_pass_the_limit():
    budget, paid = Budget(PriceSettings(input=0, output=1e6), 100), []

    def work():
        try:
            while True:
                with budget.reserved(0, 9) as bill:
                    time.sleep(0.0005)
                    bill.usage(0, 9 if len(paid) % 2 else 3)
                    paid.append(bill.cost)
        except BudgetError:
            return

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(paid) == budget.spent and 91 < budget.spent <= 100


class Clock:
    def __init__(self):
        self.now = 0.0

    def pace(self, **limits):
        return RateLimiter(**limits, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds):
        self.now += seconds


def test_requests_and_tokens_stay_within_a_minute_s_limits():
    clock, sent = Clock(), []
    pace = clock.pace(requests_per_minute=30, tokens_per_minute=6_000)
    for number in range(90):
        tokens = 50 if number < 45 else 500
        pace.wait(tokens)
        sent.append((clock.now, tokens))
    for start, _ in sent:
        within = [tokens for at, tokens in sent if start <= at < start + 60]
        assert len(within) <= 31 and sum(within) <= 6_000 + 500
    assert clock.now >= 44 * 2 + 44 * 5  # the limits are used, too: no pause is longer than it must be
    assert clock.now <= 45 * 2 + 45 * 5 + 5


def test_tokens_that_were_not_used_are_given_back_and_a_hold_holds_all():
    clock = Clock()
    pace = clock.pace(tokens_per_minute=600)
    pace.wait(600)
    pace.correct(-540)
    pace.wait(1)
    assert clock.now == pytest.approx(6)
    pace.hold(20)
    pace.wait(1)
    assert clock.now == pytest.approx(26)
