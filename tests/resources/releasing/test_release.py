"""Gates: what was not measured has not passed; each gate can be switched off."""

import itertools
import json
import subprocess
from pathlib import Path

import pytest

from resources.lake import Lake
from resources.registry import Registry
from resources.releasing.release import Gates, approve, is_approved, judge, was_decided, withdraw, write_release

MEASURED = {"recovery": 0.995, "tau_eagle3_t1": 1.6, "tau_eagle3_t1_low": 1.5}


@pytest.fixture
def begun(tmp_path):
    """A registry, a finished model in it, and the draft of a release of that model."""
    registry = Registry(Lake.open(tmp_path / "lake"), "tutor")
    model = registry.draft("model", "sft_model", "sft", ("model_ops/specs.py",), {}, [])
    (model.directory / "config.json").write_text("{}")
    target = registry.finish(model, {})
    measured = registry.draft("dataset", "evaluation_report", "evaluate", ("model_ops/specs.py",), {}, [target.as_input()])
    (measured.directory / "report.json").write_text("{}")
    parts = [target.as_input(), registry.finish(measured, {}).as_input()]
    return registry, target, registry.draft("release", "release", "release", ("resources/releasing/release.py",), {}, parts)


def results(gates, measured=MEASURED, drafter="eagle3"):
    return {result.name: result.passed for result in judge(gates, measured, 1.0, drafter)}


def test_gates_hold_at_their_value_and_fail_below():
    assert results(Gates(recovery=0.995, acceptance_length=1.5)) == {"recovery": True, "acceptance_length": True}
    assert results(Gates(recovery=0.996, acceptance_length=1.51)) == {"recovery": False, "acceptance_length": False}


def test_the_lower_end_of_the_interval_counts():
    assert results(Gates(recovery=None, acceptance_length=1.55)) == {"acceptance_length": False}


def test_what_was_not_measured_has_not_passed():
    assert results(Gates(), measured={}) == {"recovery": False, "acceptance_length": False}


def test_a_release_without_drafter_has_no_acceptance_gate():
    assert results(Gates(), drafter=None) == {"recovery": True}


def test_gates_can_be_switched_off():
    assert results(Gates(recovery=None, acceptance_length=None)) == {}


def test_the_gate_reads_the_drafter_that_is_released():
    measured = {"recovery": 1.0, "tau_medusa_t1_low": 1.3, "tau_eagle3.1_t1_low": 1.1}
    assert results(Gates(), measured, "medusa")["acceptance_length"]
    assert not results(Gates(), measured, "eagle3.1")["acceptance_length"]
    assert not results(Gates(), measured, "eagle3")["acceptance_length"]


@pytest.mark.parametrize(("architecture", "method", "sglang"), [
    ("eagle3", "eagle3", "EAGLE3"), ("eagle3.1", "eagle3", "EAGLE3"), ("p_eagle", "eagle3", None),
    ("dflash", "dflash", "DFLASH"), ("medusa", "medusa", None), ("mlp_speculator", None, None),
    ("mtp", "mtp", None), ("draft_model", "draft_model", "STANDALONE"),
])
def test_serve_scripts_ask_each_server_for_what_it_runs(tmp_path, begun, architecture, method, sglang):
    """The scripts, run with stand-ins for the servers that print the arguments they are given."""
    _, target, draft = begun
    write_release(draft.directory, "tutor", target, target, 3, [], architecture)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("vllm", "python"):
        (programs / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = {server: subprocess.run(["bash", draft.directory / f"serve-{server}.sh", "--port", "1"], env=environment, check=True,
                                   capture_output=True, text=True) for server in ("vllm", "sglang")}
    words = done["vllm"].stdout.splitlines()
    assert words[0] == "serve" and words[-1] == "1" and Path(words[1]).is_dir()
    if method is None:
        assert "--speculative-config" not in words and "without it" in done["vllm"].stderr
    else:
        config = json.loads(words[words.index("--speculative-config") + 1])
        assert config["method"] == method and config["num_speculative_tokens"] == 3 and Path(config["model"]).is_dir()
        assert config.get("parallel_drafting", False) == (architecture == "p_eagle")
        assert ("draft_sample_method" in config) == (method != "medusa") and not done["vllm"].stderr
    overrides = [json.loads(words[at + 1]) for at, word in enumerate(words) if word == "--hf-overrides"]
    assert overrides == ([{"num_nextn_predict_layers": 1}] if architecture == "mtp" else [])
    words = done["sglang"].stdout.splitlines()
    options = {name: value for name, value in itertools.pairwise(words) if name.startswith("--speculative")}
    assert options.get("--speculative-algorithm") == sglang and bool(done["sglang"].stderr) == (sglang is None)
    assert options.get("--speculative-num-draft-tokens") == (None if sglang is None else "4")
    assert options.get("--speculative-num-steps") == ("3" if sglang in ("EAGLE3", "STANDALONE") else None)


def test_a_withdrawn_approval_stays_withdrawn(begun):
    registry, target, draft = begun
    lake = registry.lake
    write_release(draft.directory, "tutor", target, None, 3, [])
    registry.finish(draft, {})
    assert not was_decided(lake, draft.directory)
    approve(lake, draft.directory, by="ana")
    assert is_approved(lake, draft.directory)
    withdraw(lake, draft.directory, by="bo")
    assert was_decided(lake, draft.directory) and not is_approved(lake, draft.directory)
