"""A drafter read from its directory, whatever its architecture."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_drafters import tiny_eagle3
from tiny_models import run_job, tiny_model, write_dataset, write_target

from model_ops.decoding.target import load_runner
from model_ops.jobs import ModelError
from model_ops.operations import generate
from model_ops.speculators.factory import load_draft_model, new_draft_model
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.verify_layers import stamp
from model_ops.verify import verify
from resources.digests.code import PACKAGES
from tests.reports import process_report

PROJECT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
LINE = "from model_ops.speculators.architectures.toy import TOY as TOY\n"


@pytest.mark.slow
def test_a_new_architecture_is_one_file_and_one_line(tmp_path):
    copy, place = tmp_path / "copy", tmp_path / "place"
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = copy / "model_ops" / "speculators" / "architectures"
    shutil.copyfile(HERE / "toy_architecture.py", folder / "toy.py")
    with (folder / "__init__.py").open("a") as lines:
        lines.write(LINE)
    write_target(place / "target", layers=4)
    write_dataset(place / "dataset", rows=6)
    run_job(generate, place / "answers", {"target": place / "target", "dataset": place / "dataset"}, max_new_tokens=8)
    done = subprocess.run(
        [sys.executable, "-P", HERE / "use_toy.py", place],
        cwd=copy,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(copy)},
    )
    assert done.returncode == 0, process_report(done)
    found = json.loads((place / "found.json").read_text())
    assert (found["settings"], found["kind"], found["class"], found["layers"], found["steps"]) == (
        "ToySettings",
        "toy",
        "Toy",
        2,
        3,
    )
    assert found["problems"] == [] and 1 <= found["tau"] <= 3
    assert "toy_layers is set, but architecture is eagle3 and only toy has it" in found["refused"]
    assert found["explained"] and found["in_schema"]
    script = (place / "release" / "serve-vllm.sh").read_text()
    assert '\\"method\\": \\"toy_method\\"' in script
    assert "sglang runs no drafter of kind toy" in (place / "release" / "serve-sglang.sh").read_text()


FAR = torch.tensor([[1, 100, 8_000]])


@pytest.mark.parametrize("architecture", ["eagle3", "dflash", "draft_model"])
def test_weights_in_bfloat16_stand_at_the_positions_of_float32(tmp_path, architecture):
    write_target(tmp_path / "target")
    write_target(tmp_path / "small", layers=2)
    runner = load_runner(tmp_path / "target")
    own = {"draft_model": str(tmp_path / "small")} if architecture == "draft_model" else {}
    settings = speculator_settings(architecture=architecture, **own).resolved()
    new_draft_model(settings, runner, torch.arange(300)).save(tmp_path / "drafter", 3)
    stamp(tmp_path / "drafter", tmp_path / "target")

    def rotation(dtype):
        drafter = load_draft_model(tmp_path / "drafter", dtype).attach(runner).drafter()
        table = drafter.runner.rotary if architecture == "draft_model" else drafter.rotary
        assert table.dtype == dtype
        return torch.stack(table.at(FAR, int(FAR.max()) + 1))

    assert torch.equal(rotation(torch.bfloat16), rotation(torch.float32).bfloat16())


@pytest.mark.parametrize(
    ("changes", "refused", "defect"),
    [
        (
            {"architectures": ["MedusaModel"], "model_type": "medusa"},
            "MedusaModel.*not a supported drafter",
            "cannot build a medusa",
        ),
        ({"mask_token_id": 95, "ptd_token_id": 95}, "mask_hidden is not supported", "tensor mask_hidden is not described"),
    ],
    ids=["medusa", "p_eagle"],
)
def test_drafters_of_removed_architectures_are_refused(tmp_path, changes, refused, defect):
    """P-EAGLE's heads name EAGLE-3's class and have a tensor more."""
    tiny_eagle3(tiny_model(layers=8)).save(tmp_path, 3)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    save_file({**load_file(weights), "mask_hidden": torch.zeros(1, 1, 96)}, weights)
    with pytest.raises(ModelError, match=refused):
        load_draft_model(tmp_path)
    said = [problem.sentence for problem in verify(tmp_path)]
    assert any(defect in sentence for sentence in said) and max(map(len, said)) < 200
