"""A continued training learns every new row, the asked share of old ones, and the same ones each time."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_ops.documents.new_rows import rows_to_learn
from model_ops.jobs.job import Job, ModelError
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.parallel.world import World


def dataset(folder, ids):
    folder.mkdir()
    pq.write_table(pa.table({"row_id": ids, "messages": [f"text {each}" for each in ids]}), folder / "train.parquet")
    pq.write_table(pa.table({"row_id": ["held"]}), folder / "validation.parquet")
    return folder


def learnt(tmp_path, now, before, replay):
    inputs = {"dataset": dataset(tmp_path / "now", now), "learnt": dataset(tmp_path / "before", before)}
    job = Job(operation="sft", output=tmp_path / "out", inputs=inputs, settings={}, threads=1)
    found, counts = rows_to_learn(job, replay, 0, World.start(MeshSettings()))
    return pq.read_table(found / "train.parquet"), found, counts


def test_new_rows_and_a_share_of_old_ones_in_their_order(tmp_path):
    old, new = [f"o{number}" for number in range(20)], [f"n{number}" for number in range(6)]
    table, found, counts = learnt(tmp_path, [*old, *new], old, 0.5)
    ids = table["row_id"].to_pylist()
    assert set(new) < set(ids) and len(ids) == 9 and counts == {"new_rows": 6, "replayed_rows": 3}
    assert ids == [each for each in [*old, *new] if each in ids]
    assert table["messages"].to_pylist()[0] == f"text {ids[0]}"
    assert pq.read_table(found / "validation.parquet")["row_id"].to_pylist() == ["held"]


def test_no_replay_takes_new_rows_only_and_rows_that_are_gone_are_not_replayed(tmp_path):
    table, _, counts = learnt(tmp_path, ["n1", "o1"], ["o1", "gone"], 10)
    assert sorted(table["row_id"].to_pylist()) == ["n1", "o1"] and counts == {"new_rows": 1, "replayed_rows": 1}


def test_nothing_new_is_refused(tmp_path):
    with pytest.raises(ModelError, match="nothing new to learn"):
        learnt(tmp_path, ["o1"], ["o1"], 0.5)


def test_a_training_that_continues_nothing_reads_its_dataset(tmp_path):
    job = Job(
        operation="sft", output=tmp_path / "out", inputs={"dataset": dataset(tmp_path / "now", ["a"])}, settings={}, threads=1
    )
    assert rows_to_learn(job, 0.5, 0, World.start(MeshSettings())) == (tmp_path / "now", {})
