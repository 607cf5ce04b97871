"""When a run clears after itself: after a whole or partial `train` that succeeded, and only what was in it."""

from types import SimpleNamespace

import dagster as dg
import pytest

import pipelines.graph.schedules as module
from pipelines.graph.schedules import clear_after

EVERYTHING = {"sft_model", "speculator"}


def cleared(monkeypatch, job="train", failed=0, selection=("sft_model", "speculator"), instance=True, run=True):
    """What remove_leftovers was asked for; None where it was not asked."""
    asked, said = [], []
    found = SimpleNamespace(sentence=lambda: "removed unfinished sft_model 1a2b3c4d5e6f (stopped 2026-11-01, 1.2 GB)")
    monkeypatch.setattr(module, "remove_leftovers", lambda *words: asked.append(words) or [found])
    monkeypatch.setattr(module, "relay", said.append)
    context = SimpleNamespace(
        run=run
        and SimpleNamespace(
            run_id="r",
            job_name=job,
            asset_selection=selection and frozenset(dg.AssetKey(["tutor", name]) for name in selection),
        ),
        instance=instance and SimpleNamespace(get_run_stats=lambda _: SimpleNamespace(steps_failed=failed)),
        log=None,
    )
    clear_after(context, "lake", "tutor", 60.0, EVERYTHING)
    assert len(said) == len(asked)
    return asked[0] if asked else None


def test_a_whole_run_clears_everything_of_its_workload(monkeypatch):
    assert cleared(monkeypatch) == ("lake", "tutor", 60.0, None)
    assert cleared(monkeypatch, selection=None) == ("lake", "tutor", 60.0, None)


def test_a_part_of_the_graph_clears_its_own_assets(monkeypatch):
    assert cleared(monkeypatch, selection=("sft_model",)) == ("lake", "tutor", 60.0, {"sft_model"})


@pytest.mark.parametrize("how", [{"job": "logs"}, {"failed": 1}, {"run": None}, {"instance": None}])
def test_reading_logs_or_failing_clears_nothing(monkeypatch, how):
    assert cleared(monkeypatch, **how) is None
