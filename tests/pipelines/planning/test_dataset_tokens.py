"""A plan of epochs reads the dataset that is there."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.finished_artefact import finished_artefact
from pipelines.planning.training_plan import dataset_tokens, estimated_seconds
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout


def test_tokens_are_counted_or_estimated_from_characters(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    assert dataset_tokens(None, "shop") is None and dataset_tokens(lake, "shop") is None
    rows = pa.table(
        {"messages": ["x" * 400, "y" * 200, None], "text": [None, None, "z" * 100], "token_ids": [[1] * 7, None, None]}
    )
    finished_artefact(
        Registry(lake, "shop"), "dataset", "sft_dataset", {}, [], lambda home: pq.write_table(rows, home / "train.parquet")
    )
    assert dataset_tokens(lake, "shop") == 700 / 4 + 7


@pytest.mark.parametrize(("steps", "tokens", "seconds"), [(10, None, 10.0), (None, 4_000, 80.0), (None, None, None)])
def test_epochs_cost_as_many_seconds_as_the_dataset_has_tokens(steps, tokens, seconds):
    plan = SimpleNamespace(tokens_per_second=100.0)
    settings = SimpleNamespace(steps=steps, tokens_per_step=100, epochs=2.0)
    assert estimated_seconds(plan, settings, tokens) == seconds
