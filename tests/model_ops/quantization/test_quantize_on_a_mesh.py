"""Calibration shared between processes: the file of two or three processes is that of one, byte for byte."""

import json
from pathlib import Path

import pytest
import torch
from forked_script import forked_script
from mixtures import mixture
from test_gptq import place  # noqa: F401
from tiny_models import write_target

from model_ops.models.model_directory import save_model
from model_ops.operations.quantize_settings import QuantizeSettings

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("quantize on a mesh")]

WIDE = {"layers": 3, "vocab_size": 300, "intermediate_size": 64}
CASES = {
    "gptq": ({"scheme": "w4a16_g32"}, 2),
    "awq_gptq": ({"scheme": "w4a16_g32", "method": "awq_gptq"}, 3),
    "smoothquant": ({"scheme": "w8a8", "method": "smoothquant", "kv_cache": "fp8"}, 2),
    "experts": ({"scheme": "w4a16_g32", "method": "awq_gptq"}, 2),
}
"""Settings, and a number of processes."""


@pytest.fixture(scope="module")
def outcomes(place, tmp_path_factory):  # noqa: F811
    """(folder, name of a job -> what it said)."""
    folder, jobs = tmp_path_factory.mktemp("mesh"), {}
    tokenizer = write_target(folder / "model", **WIDE)
    save_model(mixture("qwen3_moe").to(torch.bfloat16), tokenizer, folder / "experts_model")

    def add(name, output, settings, processes=1, stop=None):
        source = folder / ("experts_model" if name.startswith("experts") else "model")
        mesh = {"mesh": {"processes": processes}} if processes > 1 else {}
        jobs[name] = {
            "operation": "quantize",
            "output": str(folder / output),
            "inputs": {"model": str(source), "dataset": str(place / "data")},
            "stop": stop,
            "settings": {"calibration_rows": 20, "calibration_length": 64, **settings, **mesh},
        }

    for case, (settings, processes) in CASES.items():
        add(f"{case} 1", f"{case}-1", settings)
        add(f"{case} n", f"{case}-n", settings, processes)
    add("stopped", "cut", CASES["gptq"][0], 2, {"block": 2, "rank": 1})
    add("continued", "cut", CASES["gptq"][0], 2)
    add("too many", "many", {**CASES["gptq"][0], "calibration_rows": 1}, 2)
    (folder / "jobs.json").write_text(json.dumps(list(jobs.values())))
    said = forked_script(Path(__file__).with_name("quantize_on_processes.py"), [folder / "jobs.json"], folder / "said")
    return folder, dict(zip(jobs, said, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_several_processes_write_the_file_of_one(outcomes, case):
    folder, said = outcomes
    one, many = (said[f"{case} {name}"]["metrics"] for name in "1n")
    assert many == one
    assert one["tensors_quantized"] > 10
    files = [(folder / f"{case}-{name}/model.safetensors").read_bytes() for name in "1n"]
    assert files[0] == files[1]


def test_a_stop_of_one_process_stops_all_and_the_next_run_goes_on(outcomes):
    folder, said = outcomes
    assert said["stopped"]["error"] == "Stopped" and said["stopped"]["computed"] == [0, 1]
    assert said["continued"]["computed"] == [2]
    assert (folder / "cut/model.safetensors").read_bytes() == (folder / "gptq-1/model.safetensors").read_bytes()


def test_fewer_batches_than_processes_are_refused(outcomes):
    folder, said = outcomes
    assert "make 1 batches, too few for 2 processes: raise quantize.calibration_rows" in said["too many"]["message"]
    assert not (folder / "many/model.safetensors").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "w8a8"}, "scheme w8a8 with method rtn reads none: leave mesh out"),
        ({"scheme": "auto", "budget": 0.4}, "scheme auto measures the whole model in one process"),
        ({"scheme": "w4a16", "distil": {"enabled": True}}, "distil trains in one process"),
        ({"scheme": "w4a16", "mesh": {"processes": 2, "tp": 2}}, "mesh.tp is 2, and processes of quantize share rows only"),
    ],
)
def test_what_does_not_run_on_a_mesh_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        QuantizeSettings.model_validate({"mesh": {"processes": 2}, **settings})
