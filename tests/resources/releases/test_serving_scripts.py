"""Serve scripts: each server is asked for what it runs."""

import itertools
import json
import shlex
import subprocess
from pathlib import Path

import pytest

from model_ops.drafting.drafts import NO_DRAFTING, Drafting, with_drafter
from model_ops.speculators.registry import ARCHITECTURES
from model_ops.speculators.serving import DrafterServing
from resources.releases.serving_scripts import ServingPlan, write_serving_files


@pytest.mark.parametrize(
    ("architecture", "method", "sglang"),
    [
        ("eagle3", "eagle3", "EAGLE3"),
        ("eagle3.1", "eagle3", "EAGLE3"),
        ("dflash", "dflash", "DFLASH"),
        ("of no server", None, None),
        ("mtp", "mtp", None),
        ("draft_model", "draft_model", "STANDALONE"),
    ],
)
def test_serve_scripts_ask_each_server_for_what_it_runs(tmp_path, architecture, method, sglang):
    """The scripts, run with stand-ins for the servers that print the arguments they are given."""
    model, release = tmp_path / "models" / "m", tmp_path / "releases" / "tutor" / "r1"
    model.mkdir(parents=True)
    serving = ARCHITECTURES[architecture].serving if architecture in ARCHITECTURES else DrafterServing(architecture)
    plan = ServingPlan("tutor", "r1", "models/m", "models/m", serving, with_drafter(3))
    write_serving_files(release, plan)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("vllm", "python"):
        (programs / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = {
        server: subprocess.run(
            ["bash", release / f"serve-{server}.sh", "--port", "1"], env=environment, check=True, capture_output=True, text=True
        )
        for server in ("vllm", "sglang")
    }
    words = done["vllm"].stdout.splitlines()
    assert words[0] == "serve" and words[-1] == "1" and Path(words[1]).is_dir()
    if method is None:
        assert "--speculative-config" not in words and "without it" in done["vllm"].stderr
    else:
        config = json.loads(words[words.index("--speculative-config") + 1])
        assert config["method"] == method and config["num_speculative_tokens"] == 3 and Path(config["model"]).is_dir()
        assert config["draft_sample_method"] == "probabilistic" and not done["vllm"].stderr
    overrides = [json.loads(words[at + 1]) for at, word in enumerate(words) if word == "--hf-overrides"]
    assert overrides == ([{"num_nextn_predict_layers": 1}] if architecture == "mtp" else [])
    words = done["sglang"].stdout.splitlines()
    options = {name: value for name, value in itertools.pairwise(words) if name.startswith("--speculative")}
    assert options.get("--speculative-algorithm") == sglang and bool(done["sglang"].stderr) == (sglang is None)
    assert options.get("--speculative-num-draft-tokens") == (None if sglang is None else "4")
    assert options.get("--speculative-num-steps") == ("3" if sglang in ("EAGLE3", "STANDALONE") else None)


@pytest.mark.parametrize(
    ("drafting", "config", "sglang"),
    [
        (NO_DRAFTING, None, None),
        (
            Drafting(method="ngram", num_speculative_tokens=4),
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 4},
            ("NGRAM", "5"),
        ),
        (Drafting(method="suffix", num_speculative_tokens=12), {"method": "suffix", "num_speculative_tokens": 12}, None),
        (
            Drafting(method="drafter", num_speculative_tokens=3, by_batch_size=((1, 2, 3), (3, 8, 0))),
            {"method": "eagle3", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 8, 0]]},
            ("EAGLE3", "4"),
        ),
    ],
)
def test_the_chosen_drafting_is_served(tmp_path, drafting, config, sglang):
    write_serving_files(tmp_path, ServingPlan("tutor", "r1", "models/m", "models/d", ARCHITECTURES["eagle3"].serving, drafting))
    words = shlex.split((tmp_path / "serve-vllm.sh").read_text().partition("exec ")[2])
    found = json.loads(words[words.index("--speculative-config") + 1]) if "--speculative-config" in words else None
    if found is not None:
        assert found.pop("model", None) == ("$LAKE/models/d" if drafting.method == "drafter" else None)
        for name in ("draft_sample_method", "rejection_sample_method"):
            assert (found.pop(name, None) is not None) == (drafting.method == "drafter")
    assert found == config
    script = (tmp_path / "serve-sglang.sh").read_text()
    words = shlex.split(script.partition("exec ")[2])
    said = dict(itertools.pairwise(words))
    assert sglang == (
        None
        if "--speculative-algorithm" not in said
        else (said["--speculative-algorithm"], said["--speculative-num-draft-tokens"])
    )
    assert ("without it" in script) == (drafting.method == "suffix")
