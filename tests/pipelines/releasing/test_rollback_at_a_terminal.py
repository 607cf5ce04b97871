"""`millrace rollback` at a terminal: a yes counts for what was shown, and for nothing else."""

from types import SimpleNamespace

import pytest

from model_ops.jobs.job import Misuse
from pipelines.commands import release as commands
from resources.endpoints import approvals
from resources.endpoints.approvals import approve_release
from resources.endpoints.endpoint_log import Actor
from resources.lake.lake import LakeLayout


@pytest.mark.parametrize(
    ("shown", "yes", "allowed"), [("", False, False), ("it learnt 3 erased rows", False, True), ("", True, True)]
)
def test_a_yes_to_erased_rows_counts_only_where_they_were_shown(tmp_path, make_release, monkeypatch, shown, yes, allowed):
    lake, asked = LakeLayout.open(tmp_path / "lake"), []
    old, new = make_release(lake, 1), make_release(lake, 2)
    for release in (old, new):
        approve_release(lake, release, Actor("ana", "MILLRACE_USER"))

    def roll_back(*_, though_tainted):
        asked.append(though_tainted)
        raise Misuse("enough")

    monkeypatch.setenv("MILLRACE_USER", "ana")
    monkeypatch.setattr(commands, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(commands.typer, "confirm", lambda question: True)
    monkeypatch.setattr(approvals, "taint_of", lambda *_: shown)
    monkeypatch.setattr(approvals, "roll_back", roll_back)
    with pytest.raises(Misuse, match="enough"):
        commands.rollback("tutor", yes=yes, lake=str(lake.root))
    assert asked == [allowed]
