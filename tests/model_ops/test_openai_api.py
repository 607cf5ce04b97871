"""What everything that asks a server shares: addresses, keys, pauses."""

from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from model_ops.decoding.served import ServedModel
from model_ops.errors import ModelError
from model_ops.openai_api import MissingKeyError, _Retry, key_in, plain_address
from model_ops.specs import EndpointSettings


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://x/v1", "http://", "http://me:secret@x/v1", "https://x/v1?key=secret"])
def test_addresses_that_are_refused(address):
    with pytest.raises(ValidationError, match=r"base_url\n.*a server's address"):
        EndpointSettings(base_url=address, model="m")
    with pytest.raises(ModelError, match="a server's address") as caught:
        ServedModel(address)
    assert "secret" not in str(caught.value)


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
