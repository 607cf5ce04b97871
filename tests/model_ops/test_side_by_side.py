"""The served model and the champion on last week's rows: what is compared, and the rows that changed most."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_models import write_dataset, write_target

from model_ops.evaluation import side_by_side as module
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.evaluation.side_by_side import side_by_side
from model_ops.jobs import Job, Progress

LAST = datetime(2026, 6, 20, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two models and ten test rows, one a day; row N has N + 1 days' distance from the last one."""
    root = tmp_path_factory.mktemp("beside")
    for seed, name in enumerate(("target", "champion")):
        write_target(root / name, layers=2, seed=seed)
    write_dataset(root / "dataset", rows=10, splits=("test",))
    table = pq.read_table(root / "dataset/test.parquet")
    days = pa.array([LAST - timedelta(days=number) for number in range(10)], pa.timestamp("us", tz="UTC"))
    pq.write_table(table.append_column("ts", days), root / "dataset/test.parquet")
    return root


def compared(place, tmp_path, losses, **inputs):
    """losses: row -> (target's sum, champion's sum), of 10 tokens each."""
    rows = [
        {"row_id": f"test-{row}", "model": model, "nll_sum": nll, "tokens": 10}
        for row, both in losses.items()
        for model, nll in zip(("quantized", "champion"), both, strict=True)
    ]
    tmp_path.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "likelihood.parquet")
    job = Job(
        operation="evaluate",
        output=tmp_path,
        inputs={"dataset": place / "dataset", "target": place / "target", "champion": place / "champion", **inputs},
    )
    found = side_by_side(job, EvaluateSettings(max_new_tokens=4), {"target": "quantized", "champion": "champion"}, Progress())
    path = tmp_path / "side_by_side.jsonl"
    return found, [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else None


def test_last_weeks_rows_are_ordered_by_what_changed_most(place, tmp_path):
    found, lines = compared(place, tmp_path, {0: (30, 20), 1: (20, 21), 2: (20, 20), 3: (50, 20), 4: (10, 19), 8: (90, 10)})
    summary = found.summary
    assert summary["rows"] == 5 and summary["since"].startswith("2026-06-13")  # row 8 is of the week before
    assert (summary["worse"], summary["better"], summary["against"]) == (2, 2, "champion") and summary[
        "loss_target"
    ] == pytest.approx(2.6)
    assert summary["increase"] == pytest.approx(2.6 - 2.0) and summary["low"] < 0.6 < summary["high"]
    assert [(line["row_id"], line["kind"]) for line in lines] == [
        ("test-3", "regression"),
        ("test-0", "regression"),
        ("test-2", "gain"),
        ("test-1", "gain"),
        ("test-4", "gain"),
    ]
    first = lines[0]
    assert first["change"] == pytest.approx(3.0) and first["target_loss"] == 5.0 and first["ts"].startswith("2026-06-17")
    assert first["prompt"][-1] == {"role": "user", "text": "again"} and first["logged"] == "def add(a, b):"
    assert all(isinstance(line["target"], str) and isinstance(line["champion"], str) for line in lines)
    assert any(line["target"] != line["champion"] for line in lines) and not found.not_measured


def test_only_the_largest_changes_are_kept_and_texts_are_cut(place, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 1)
    monkeypatch.setattr(module, "CHARACTERS", 5)
    found, lines = compared(place, tmp_path, {0: (30, 20), 1: (40, 20), 2: (10, 20), 3: (5, 20)})
    assert [line["row_id"] for line in lines] == ["test-1", "test-3"] and found.summary["worse"] == 2
    assert all(len(text) <= 5 for line in lines for text in (line["logged"], line["target"], line["champion"]))


def of_one_run(place, tmp_path, losses, same, **inputs):
    rows = [
        {"row_id": f"test-{row}", "model": model, "nll_sum": nll, "tokens": 10}
        for row, both in losses.items()
        for model, nll in both.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "likelihood.parquet")
    job = Job(
        operation="evaluate", output=tmp_path, inputs={"dataset": place / "dataset", "target": place / "target", **inputs}
    )
    found = side_by_side(job, EvaluateSettings(max_new_tokens=4), same, Progress())
    return found, [json.loads(line) for line in (tmp_path / "side_by_side.jsonl").read_text().splitlines()]


def test_a_first_release_is_compared_with_its_base_on_all_held_out_rows(place, tmp_path):
    losses = {row: {"target": 10 + row, "base": 20} for row in range(10)}
    found, lines = of_one_run(place, tmp_path, losses, {"target": "target", "base": "base"}, base=place / "champion")
    assert (found.summary["against"], found.summary["rows"], found.summary["since"], found.summary["better"]) == (
        "base",
        10,
        None,
        10,
    )
    assert [line["row_id"] for line in lines] == [
        f"test-{row}" for row in range(9, -1, -1)
    ]  # gains, worst first, and all of them
    assert all({"logged", "base", "target", "base_loss"} <= line.keys() and line["change"] < 0 for line in lines)


def test_a_target_alone_shows_the_rows_that_it_finds_least_likely(place, tmp_path):
    found, lines = of_one_run(
        place, tmp_path, {0: {"all": 10}, 1: {"all": 30}}, {"target": "all", "base": "all"}, base=place / "target"
    )
    assert (
        found.summary["against"] is None
        and [line["row_id"] for line in lines] == ["test-1", "test-0"]
        and lines[0]["change"] == 3.0
    )
    assert "base" not in lines[0] and lines[0]["marks"] in ({}, {"target": module.CUT}, {"target": module.EMPTY})


def test_an_answer_that_loops_is_harm_that_a_loss_does_not_show(place, tmp_path, monkeypatch):
    said = {"target": {"test-0": "", "test-1": module.LOOPS, "test-2": module.LOOPS}, "base": {"test-2": module.EMPTY}}
    monkeypatch.setattr(
        module,
        "_answers",
        lambda job, settings, role, rows, progress: {row: {"text": "t", "mark": said[role].get(row, "")} for row in rows},
    )
    losses = {row: {"target": 30 - row, "base": 20} for row in range(3)}
    _, lines = of_one_run(place, tmp_path, losses, {"target": "target", "base": "base"}, base=place / "champion")
    assert [line["row_id"] for line in lines] == ["test-1", "test-0", "test-2"] and lines[0]["marks"] == {
        "target": module.LOOPS
    }


def test_a_champion_that_cannot_answer_leaves_the_losses(place, tmp_path):
    (tmp_path / "broken").mkdir()
    found, lines = compared(place, tmp_path / "out", {0: (30, 20)}, champion=tmp_path / "broken")
    assert found.summary["worse"] == 1 and found.not_measured["answers side by side"].startswith("champion: ")
    assert "champion" not in lines[0] and "target" in lines[0]
