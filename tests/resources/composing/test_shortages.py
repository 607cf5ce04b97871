"""What a mixture asks for and does not get is a line of the run."""

import json
from types import SimpleNamespace

import dagster as dg

from assets.presentation import tell_shortages


def lines(tmp_path, monkeypatch, metrics):
    monkeypatch.setenv("MILLRACE_PROGRESS", str(tmp_path / "progress"))
    (tmp_path / "progress").touch()
    tell_shortages(dg.build_asset_context(), SimpleNamespace(name="help/best", metrics=metrics))
    return [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]


def test_a_shortage_is_told_in_one_line_with_the_mixture_that_came_out(tmp_path, monkeypatch):
    metrics = {
        "notes": ["mix asks for 36 rows of gateway, which has 25 rows for training", "max_rows asks for 60 rows, and the mix has 49"],
        "sources": {"gateway": 25, "claude": 12, "rules": 12},
    }  # fmt: skip
    assert lines(tmp_path, monkeypatch, metrics) == [
        {
            "event": "note",
            "message": (
                "best: mix asks for 36 rows of gateway, which has 25 rows for training; max_rows asks for 60 rows, and the mix has 49; "
                "its training rows are claude 12 (24%), gateway 25 (51%), rules 12 (24%)"
            ),
        }
    ]


def test_a_calibration_set_names_no_mixture_and_a_whole_dataset_is_silent(tmp_path, monkeypatch):
    assert lines(tmp_path, monkeypatch, {"notes": ["too few"]})[0]["message"] == "best: too few"
    (tmp_path / "progress").unlink()
    assert lines(tmp_path, monkeypatch, {"notes": [], "sources": {"gateway": 25}}) == []
