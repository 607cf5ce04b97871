"""Which server loads which scheme where: every scheme has a row, places are read, and refusals name what would work."""

from pathlib import Path

import pytest

from model_ops.planning.servers import (
    CACHE,
    SERVERS,
    SUPPORT,
    PlaceError,
    keeps_activations,
    loadable,
    markdown,
    parse_place,
    why_not,
)
from model_ops.quantization.schemes import SCHEMES


def test_every_scheme_has_a_row_with_a_source_for_each_server():
    assert set(SUPPORT) == set(SCHEMES)
    for servers in (*SUPPORT.values(), CACHE):
        assert servers and set(servers) <= set(SERVERS)
        assert all(found.source.startswith(f"{server}: ") for server, found in servers.items())
        assert all(found.cpu is not None for found in servers.values() if found.seen)


@pytest.mark.parametrize(
    ("text", "server", "capability", "amx"),
    [
        ("vllm/cpu", "vllm", None, False), ("SGLang/CPU-AMX", "sglang", None, True), ("vllm/sm75", "vllm", 75, False),
        ("vllm/H100-SXM", "vllm", 90, False), ("transformers/rtx5090", "transformers", 120, False),
    ],
)  # fmt: skip
def test_a_place_is_a_server_and_a_device(text, server, capability, amx):
    place = parse_place(text)
    assert (place.server, place.capability, place.amx) == (server, capability, amx)
    assert parse_place(str(place)) == place


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm", "give one of vllm, sglang"), ("tgi/h100", "give one of vllm, sglang"), ("vllm/", "give one of vllm"),
        ("vllm/tpu", "one of b200, h200"), ("vllm/mi300x", "no device whose compute capability is known"),
    ],
)  # fmt: skip
def test_another_place_is_one_sentence(text, said):
    with pytest.raises(PlaceError, match=said):
        parse_place(text)


def test_what_is_refused_names_what_the_place_loads_and_who_loads_the_scheme():
    refused = why_not("w8a8", parse_place("vllm/b200"))
    assert (
        refused.startswith("vllm/b200 does not load scheme w8a8: choose ")
        and "w8a8 is loaded by vllm on GPU from 7.5" in refused
    )
    for choice in loadable(parse_place("vllm/b200")):
        assert choice in refused and why_not(choice, parse_place("vllm/b200")) is None
    assert why_not("w8a8", parse_place("vllm/h100")) is None and why_not("w8a8", parse_place("vllm/cpu")) is None
    assert "it loads none of the schemes" in why_not("w4a16", parse_place("sglang/cpu"))
    assert why_not("w8a8", parse_place("sglang/cpu-amx")) is None


def test_devices_before_fp8_keep_activations():
    assert keeps_activations("fp8", parse_place("vllm/a100")) and not keeps_activations("fp8", parse_place("vllm/h100"))
    assert not keeps_activations("w4a16", parse_place("vllm/a100")) and not keeps_activations("fp8", parse_place("vllm/cpu"))


def test_the_documentation_holds_the_table():
    page = Path(__file__).parents[3] / "docs" / "quantization.md"
    assert markdown() in page.read_text()
