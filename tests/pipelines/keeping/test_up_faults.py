"""The benchmark of kills under `millrace up`, small: nothing is lost, read twice, stuck or left behind."""

import pytest

from benchmarks.postgres_server import NoPostgres
from benchmarks.up_faults import faults


@pytest.mark.thorough
@pytest.mark.parametrize("with_database", [False, True])
def test_kills_lose_nothing(with_database, monkeypatch):
    for name in ("MILLRACE_HOME", "MILLRACE_LAKE", "MILLRACE_POSTGRES", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    try:
        found = faults(kills=6 if with_database else 5, days=2, with_database=with_database, between_s=(5.0, 20.0))
    except NoPostgres as error:
        pytest.skip(str(error))
    assert {name: found[name] for name in ("lost", "twice", "uncleaned", "stuck", "left")} == dict.fromkeys(
        ("lost", "twice", "uncleaned", "stuck", "left"), 0
    ), found
    assert found["cursor"] and found["kills"] >= 4
