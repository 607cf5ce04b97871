"""The precision that `auto` stands for: by the device, measured once per machine, kept for other processes."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from model_ops.decoding.runner import SMALL_PARAMETERS, decoding_dtype
from model_ops.machine import precision as module
from model_ops.machine.precision import Speeds, concrete_precision, cpu_speeds, measured, products_in
from model_ops.models.tiny_families import tiny_config
from model_ops.operations.quantize import calibration_dtype
from model_ops.operations.sft_settings import SftSettings
from model_ops.planning.needs import Training, needs_of
from model_ops.training.tuning import load_to_tune

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    """A user's cache folder without measurements, and a process that has measured nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_FOUND", {})
    return tmp_path / "millrace" / "cpu_speeds"


@pytest.fixture
def rates(monkeypatch):
    """Sets the GFLOP/s that are measured, and returns the list of measurements."""
    calls = []

    def are(float32, bfloat16):
        monkeypatch.setattr(module, "measured", lambda: calls.append(1) or Speeds(float32, bfloat16))
        monkeypatch.setattr(module, "_FOUND", {})
        return calls

    return are


@pytest.mark.parametrize(
    "float32, bfloat16, chosen",
    [
        (12.0, 0.5, "float32"), (115.0, 23.0, "float32"), (100.0, 101.0, "float32"), (100.0, 180.0, "bfloat16"),
        (120.0, 900.0, "bfloat16"),
    ],
)  # fmt: skip
def test_auto_is_bfloat16_only_where_its_products_are_clearly_faster(rates, float32, bfloat16, chosen):
    rates(float32, bfloat16)
    assert concrete_precision("auto", CPU) == chosen
    with products_in("auto", CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == getattr(torch, chosen)
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_a_given_precision_is_taken_as_it_is_and_measures_nothing(rates):
    calls = rates(12.0, 0.5)
    assert [concrete_precision(given, CPU) for given in ("bfloat16", "float32")] == ["bfloat16", "float32"]
    with products_in("bfloat16", CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert not calls


@pytest.mark.parametrize("units, chosen", [(True, "bfloat16"), (False, "float32")])
def test_a_gpu_without_bfloat16_units_computes_in_float32(monkeypatch, rates, units, chosen):
    calls = rates(1.0, 100.0)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or units)
    assert concrete_precision("auto", torch.device("cuda", 0)) == chosen
    assert concrete_precision("auto", torch.device("mps")) == "float32"
    assert not calls


def test_a_machine_is_measured_once_and_another_process_reads_the_result(rates, monkeypatch, empty_cache):
    calls = rates(12.0, 0.5)
    assert cpu_speeds() == cpu_speeds() == (12.0, 0.5)
    monkeypatch.setattr(module, "_FOUND", {})  # another process
    assert cpu_speeds() == (12.0, 0.5)
    assert len(calls) == 1
    [file] = empty_cache.iterdir()
    file.write_text("{")  # damaged: measured again and mended
    monkeypatch.setattr(module, "_FOUND", {})
    assert cpu_speeds() == (12.0, 0.5)
    assert len(calls) == 2
    assert json.loads(file.read_text()) == {"float32": 12.0, "bfloat16": 0.5}


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41"),
        lambda patch: patch.setenv("ATEN_CPU_CAPABILITY", "default"),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
        lambda patch: patch.setattr(module, "version", lambda name: "9.9"),
        lambda patch: patch.setattr(module, "processor", lambda: ["model name: another"]),
    ],
)
def test_a_machine_that_computes_in_another_way_is_measured_anew(rates, monkeypatch, empty_cache, change):
    calls = rates(12.0, 0.5)
    cpu_speeds()
    change(monkeypatch)
    cpu_speeds()
    assert len(calls) == 2
    assert len(list(empty_cache.iterdir())) == 2


def test_a_cache_folder_that_cannot_be_written_costs_a_measurement_per_process(rates, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    calls = rates(12.0, 0.5)
    assert cpu_speeds() == cpu_speeds() == (12.0, 0.5)
    monkeypatch.setattr(module, "_FOUND", {})
    cpu_speeds()
    assert len(calls) == 2


def test_hopeless_bfloat16_is_measured_in_small_products_only(monkeypatch):
    asked = []

    def gflops(side, *dtypes):
        asked.append((side, *dtypes))
        return [{"float32": 12.0, "bfloat16": 0.5}[name] for name in dtypes]

    monkeypatch.setattr(module, "gflops", gflops)
    assert measured() == (12.0, 0.5)
    assert asked == [(module.SMALL, "float32", "bfloat16"), (module.LARGE, "float32")]


def test_the_measurement_is_real_and_short():
    began_s = time.process_time()
    found = measured()
    assert min(found) > 0.01
    assert time.process_time() - began_s < 5 * torch.get_num_threads()  # 0.1 to 0.7 s; a machine may be busy


def test_a_process_without_torch_gets_the_same_speeds(monkeypatch, empty_cache):
    ours = cpu_speeds()
    code = (
        "import json, sys; from model_ops.machine.precision import cpu_speeds; "
        f"print(json.dumps(cpu_speeds(threads={torch.get_num_threads()}))); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert tuple(json.loads(done.stdout)) == ours
    assert len(list(empty_cache.iterdir())) == 1


def test_a_process_without_torch_has_another_one_measure(monkeypatch, empty_cache):
    monkeypatch.setattr(
        module.subprocess,
        "run",
        lambda command, env, **_: subprocess.CompletedProcess(
            command, 0, json.dumps({"float32": float(env["OMP_NUM_THREADS"]), "bfloat16": 1.0, "precision": "float32"})
        ),
    )
    assert cpu_speeds(threads=3) == (3.0, 1.0)
    monkeypatch.setattr(module, "_FOUND", {})
    monkeypatch.setattr(module.subprocess, "run", None)
    assert cpu_speeds(threads=3) == (3.0, 1.0)


@pytest.fixture(params=["bfloat16", "float32"])
def auto(monkeypatch, request):
    """The precision that auto stands for."""
    monkeypatch.setattr(module, "AUTO", [lambda device: request.param])
    return request.param


def test_large_models_are_decoded_in_it_and_small_ones_on_a_cpu_in_float32(auto):
    assert decoding_dtype(CPU, SMALL_PARAMETERS) == decoding_dtype(torch.device("cuda"), 1) == getattr(torch, auto)
    assert decoding_dtype(CPU, SMALL_PARAMETERS - 1) == torch.float32


def test_half_weights_are_shown_calibration_rows_in_it(auto):
    def header(dtype):
        return {"layer.weight": SimpleNamespace(dtype=dtype)}

    assert {calibration_dtype(header(name), CPU) for name in ("BF16", "F16")} == {getattr(torch, auto)}
    assert calibration_dtype(header("F32"), CPU) == torch.float32


def test_a_frozen_base_is_held_in_it(auto, tiny_model):
    settings = SftSettings(method="lora", lora={"rank": 2}).resolved()
    model, _ = load_to_tune(tiny_model, settings, CPU)
    assert model.model.layers[0].self_attn.q_proj.weight.dtype == getattr(torch, auto)


def test_the_plan_of_a_cpu_is_made_for_it_and_of_gpus_for_bfloat16(auto):
    config = tiny_config("qwen3")
    for device, precision in (("cpu", auto), ("cuda", "bfloat16")):
        found, wanted = (
            needs_of(config, Training("full", 64, 64, precision=each), "tiny", device) for each in ("auto", precision)
        )
        assert (found.sharded_trace is None) == (wanted.sharded_trace is None) == (precision == "float32")
        assert found.trace(64, "none", 1) == wanted.trace(64, "none", 1)
