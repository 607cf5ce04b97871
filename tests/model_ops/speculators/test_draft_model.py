"""A drafter read from its directory, whatever its architecture."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_drafters import tiny_eagle3
from tiny_models import tiny_model, write_target

from model_ops.decoding.target import load_runner
from model_ops.jobs.job import ModelError
from model_ops.speculators.factory import load_draft_model, new_draft_model
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.verify_layers import stamp
from model_ops.verify import verify

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
