"""What everything that asks a server shares: addresses, keys, repeats, pauses, proxies."""

from types import SimpleNamespace

import pytest
from loopback import loopback
from pydantic import ValidationError

from model_ops.answering.endpoint_settings import EndpointSettings, plain_address
from model_ops.answering.openai_api import MissingKeyError, OpenAiApi, _Retry, key_in
from model_ops.answering.served import ServedModel
from model_ops.jobs.errors import ModelError


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


def test_a_key_is_asked_for_only_where_a_variable_is_named(monkeypatch):
    assert key_in(None) is None
    monkeypatch.setenv("TUTOR_KEY", " sesame\n")
    assert key_in("TUTOR_KEY") == "sesame"
    monkeypatch.setenv("TUTOR_KEY", " ")
    with pytest.raises(MissingKeyError, match="variable TUTOR_KEY"):
        key_in("TUTOR_KEY")


def test_a_pause_of_hours_is_cut_short():
    assert _Retry().get_retry_after(SimpleNamespace(headers={"Retry-After": "86400"})) == 60
    assert _Retry().get_retry_after(SimpleNamespace(headers={"Retry-After": "7"})) == 7
    assert _Retry().get_retry_after(SimpleNamespace(headers={})) is None


@pytest.mark.parametrize(("retries", "asked"), [(2, 3), (0, 1), (None, 1)])
def test_a_busy_server_is_asked_again_where_that_is_wanted(retries, asked):
    with loopback(lambda body, number: (503, {"number": number})) as (address, seen):
        api = OpenAiApi(address, api_key="k", connections=1, timeout_s=5, retries=retries)
        response = api.request("POST", "/v1/completions", {"prompt": [1]})
        api.close()
    assert (response.status, response.json()) == (503, {"number": asked})
    assert [request["body"] for request in seen] == [{"prompt": [1]}] * asked
    assert seen[0]["headers"]["Authorization"] == "Bearer k"


def test_the_proxy_of_the_environment_is_asked_except_where_it_says_no(monkeypatch):
    with loopback(lambda body, number: (200, "proxied")) as (proxy, seen), loopback(lambda *_: (200, "direct")) as (address, _):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        replies = {}
        for base_url in (address, "http://tutor.invalid/v1"):
            api = OpenAiApi(base_url, api_key=None, connections=1, timeout_s=5, retries=None)
            replies[base_url] = api.request("POST", "/x", {}).data
            api.close()
    assert replies == {address: b"direct", "http://tutor.invalid/v1": b"proxied"}
    assert [request["path"] for request in seen] == ["http://tutor.invalid/v1/x"] and "Authorization" not in seen[0]["headers"]
