"""scheme: auto: the choice against all choices, costs by definition, and a directory of several schemes as servers read it."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig
from pydantic import ValidationError
from stop_after import StopAfter
from tiny_models import write_dataset, write_target
from transformers import AutoModelForCausalLM

from model_ops.calibration.auto_schemes import cheapest, stored_bytes
from model_ops.files.tensor_files import read_directory
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.models.model_directory import load_model
from model_ops.models.verify_model import verify_weights
from model_ops.operations import QuantizeSettings, quantize
from model_ops.quantization import SCHEMES, load_quantized, quantization_of


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_as_many_bytes_is_better(seed):
    generator = np.random.default_rng(seed)
    sizes = [[int(size) for size in np.sort(generator.integers(1, 100, 3))] for _ in range(5)]
    costs = [[float(cost) for cost in np.sort(generator.random(3))[::-1]] for _ in range(5)]
    least, most = sum(map(min, sizes)), sum(map(max, sizes))
    for room in (least, (least + most) // 2, most):
        chosen = cheapest(sizes, costs, room)
        spent = sum(row[option] for row, option in zip(sizes, chosen, strict=True))
        cost = sum(row[option] for row, option in zip(costs, chosen, strict=True))
        every = [
            (
                sum(row[option] for row, option in zip(sizes, choice, strict=True)),
                sum(row[option] for row, option in zip(costs, choice, strict=True)),
            )
            for choice in itertools.product(range(3), repeat=5)
        ]
        assert spent <= room
        largest_step = max(max(row) - min(row) for row in costs)
        assert cost <= min(other for size, other in every if size <= room) + largest_step
        if room in (least, most):
            assert cost == pytest.approx(min(other for size, other in every if size <= room))
    assert cheapest(sizes, costs, least - 1) is None


def test_options_that_are_larger_and_worse_are_never_taken():
    assert cheapest([[10, 20, 30]], [[1.0, 2.0, 0.5]], 25) == [0] and cheapest([[10, 20, 30]], [[1.0, 2.0, 0.5]], 30) == [2]


def test_stored_bytes_are_those_of_files():
    assert stored_bytes((64, 256), None) == 2 * 64 * 256
    assert stored_bytes((64, 256), SCHEMES["w8a8"]) == 64 * 256 + 4 * 64
    assert stored_bytes((64, 256), SCHEMES["w4a16"]) == 64 * 256 // 2 + 2 * 64 * 2 + 16


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("auto")
    write_target(root / "float", layers=3, hidden_size=64, intermediate_size=128, initializer_range=0.1)
    write_dataset(root / "dataset", rows=30)
    return root


def job(place, output, **settings):
    given = {
        "scheme": "auto",
        "budget": 0.5,
        "candidates": ["w4a16_g32", "w8a16_channel", "float"],
        "calibration_rows": 20,
        "calibration_length": 64,
    }
    return Job(
        operation="quantize",
        output=output,
        inputs={"model": place / "float", "dataset": place / "dataset"},
        settings={**given, **settings},
    )


def run(place, output, **settings):
    return quantize.run(job(place, output, **settings), Progress())


def share(place, output):
    """Bytes of the written tensors over those of the source, which is bfloat16."""

    def total(folder):
        return sum(len(header.read()) for header in read_directory(folder).values())

    return total(output) / total(place / "float")


@pytest.mark.parametrize("budget", [0.45, 0.5, 0.7])
def test_the_directory_keeps_the_budget_and_is_what_servers_read(place, tmp_path, budget):
    told = run(place, tmp_path / "q", budget=budget)
    assert share(place, tmp_path / "q") == pytest.approx(told["bfloat16_share"], abs=2e-3) and told["bfloat16_share"] <= budget
    config = json.loads((tmp_path / "q/config.json").read_text())
    assert verify_weights(config, read_directory(tmp_path / "q")) == []
    found = quantization_of(config)
    for block in range(3):
        for joined in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
            assert len({found.scheme_of(f"model.layers.{block}.{name}") for name in joined}) == 1, "servers join these layers"
    QuantizationConfig.model_validate(config["quantization_config"])
    ids = torch.arange(5, 40)[None]
    with torch.no_grad():
        ours = load_quantized(tmp_path / "q", torch.float32)(ids).logits
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32)(ids).logits
        floats = load_model(place / "float", attention="eager")(ids).logits
    assert torch.allclose(ours, theirs, atol=2e-3)
    assert 0 < (ours - floats).norm() < 0.5 * floats.norm()


def test_more_room_costs_less(place, tmp_path):
    told = [run(place, tmp_path / str(number), budget=budget, method="rtn") for number, budget in enumerate((0.45, 0.6, 0.8))]
    costs = [each["summed_divergence"] for each in told]
    assert costs[0] > costs[1] > costs[2]
    assert told[0]["units_by_scheme"].get("w4a16_g32", 0) > told[2]["units_by_scheme"].get("w4a16_g32", 0)


def test_a_stopped_search_measures_no_unit_twice(place, tmp_path, monkeypatch):
    (tmp_path / "stopped").mkdir()
    with pytest.raises(Stopped):
        quantize.run(job(place, tmp_path / "stopped"), StopAfter(5, "sensitivity"))
    from model_ops.calibration import auto_schemes as mixed_precision

    asked, cost = [], mixed_precision._cost
    monkeypatch.setattr(mixed_precision, "_cost", lambda *given: asked.append(given[1]) or cost(*given))
    run(place, tmp_path / "stopped")
    assert len(asked) == 3 * (3 * 4 - 5)
    run(place, tmp_path / "whole")
    assert (tmp_path / "stopped/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_what_cannot_be_met_is_refused_with_the_nearest(place, tmp_path):
    with pytest.raises(ModelError, match=r"meets the budget 0\.1: .* nearest budget is 0\.\d+"):
        run(place, tmp_path / "a", budget=0.1)
    with pytest.raises(ModelError, match=r"no candidate \(w4a16\) can store every layer"):
        run(place, tmp_path / "b", candidates=["w4a16", "float"])
    assert not list(tmp_path.rglob("*.safetensors"))
    for settings, said in (
        ({"scheme": "auto"}, "needs a budget"),
        ({"budget": 0.4}, "budget is for scheme auto"),
        ({"scheme": "auto", "budget": 0.4, "distil": {"enabled": True}}, "one scheme of all layers"),
    ):
        with pytest.raises(ValidationError, match=said):
            QuantizeSettings.model_validate(settings)
