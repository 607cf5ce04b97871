"""Meshes that a person writes: what is inferred, and one sentence for what does not divide."""

import pytest
from pydantic import ValidationError

from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.speculators.registry import speculator_settings
from model_ops.training.settings import TrainingSettings


def test_nothing_said_is_one_process():
    mesh = TrainingSettings().mesh.resolved()
    assert mesh.processes == 1 and set(mesh.sizes().values()) == {1}


def test_processes_alone_share_one_copy_of_the_model():
    assert MeshSettings(processes=4).sizes() == {"dp_replicate": 1, "dp_shard": 4, "cp": 1, "ep": 1, "tp": 1}


def test_dp_shard_takes_what_the_other_axes_leave():
    assert MeshSettings(processes=16, tp=2, cp=2).resolved().dp_shard == 4
    assert MeshSettings(dp_shard=-1, tp=2).resolved(accelerators=8).sizes()["dp_shard"] == 4
    assert MeshSettings(tp=4, dp_shard=2).resolved().processes == 8


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"processes": 6, "tp": 4}, "6 processes are not a multiple of 4 (tp 4)"),
        ({"processes": 2, "dp_replicate": 2, "tp": 2}, "2 processes are not a multiple of 4 (dp_replicate 2 x tp 2)"),
        ({"processes": 8, "dp_shard": 3, "tp": 2}, "dp_shard 3 times 2 (tp 2) is 6, but processes is 8"),
        ({"dp_shard": 0}, "dp_shard is a number of processes, or -1"),
    ],
)
def test_a_mesh_that_cannot_be_is_one_sentence(values, sentence):
    with pytest.raises(ValidationError) as caught:
        MeshSettings(**values)
    assert sentence in str(caught.value)


def test_all_accelerators_where_there_are_none():
    with pytest.raises(ValueError, match="no accelerators to count: give processes"):
        MeshSettings(dp_shard=-1).resolved(accelerators=0)


def test_drafters_are_copied_and_cut_and_nothing_else():
    assert speculator_settings(mesh={"dp_replicate": 2, "dp_shard": 4}).mesh.resolved().processes == 8
    assert speculator_settings(mesh={"dp_shard": -1}).mesh.dp_shard == -1
    for axis in ("cp", "ep", "tp"):
        with pytest.raises(
            ValidationError, match=f"{axis} is 2, but drafters support only dp_shard and dp_replicate: set {axis} to 1"
        ):
            speculator_settings(mesh={axis: 2})
    with pytest.raises(ValidationError, match="this stage trains in one process; leave mesh out"):
        TinyBaseSettings(mesh={"dp_shard": 2})
