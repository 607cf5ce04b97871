"""A drafter read from its directory, whatever its architecture."""

from __future__ import annotations

import pytest
import torch
from tiny_models import write_target

from model_ops.decoding.target import load_runner
from model_ops.speculators.factory import load_draft_model, new_draft_model
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.target_stamp import stamp

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
