"""Dagster's history in Postgres: how MILLRACE_POSTGRES is read, and a real server."""

import os

import dagster as dg
import pytest
import yaml

from benchmarks.postgres_server import NoPostgres, postgres_server
from pipelines.keeping.daemon_lock import DaemonLock
from pipelines.running.instance import dagster_home, fail_dead_runs, open_instance
from resources.lake.lake import LakeLayout
from resources.launching import postgres
from resources.launching.postgres import PostgresError
from resources.launching.run_history import HOST_TAG, PROCESS_TAG, runs, runs_in_progress, seconds_of_steps

URL = "postgresql://millrace:SECRET@db.example:5433/millrace?sslmode=require"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("MILLRACE_POSTGRES", "MILLRACE_HOME", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "given", [URL, URL.replace("postgresql", "postgres"), URL.replace("postgresql", "postgresql+psycopg2")]
)
def test_the_url_names_the_driver_that_dagster_brings(given, monkeypatch):
    monkeypatch.setenv("MILLRACE_POSTGRES", f" {given} ")
    assert postgres.url() == URL.replace("postgresql", "postgresql+psycopg2")


@pytest.mark.parametrize(
    "given", ["mysql://u:SECRET@h/d", "postgresql://u:SECRET@h", "postgresql:///", "SECRET", "postgresql://u:SECRET@h:port/d"]
)
def test_a_url_of_no_postgres_is_refused_without_showing_its_password(given, monkeypatch):
    monkeypatch.setenv("MILLRACE_POSTGRES", given)
    with pytest.raises(PostgresError, match="looks like postgresql://USER:PASSWORD") as refused:
        postgres.url()
    assert "SECRET" not in str(refused.value)


def test_without_the_variable_the_history_is_in_files(tmp_path):
    assert postgres.url() == ""
    assert "storage" not in yaml.safe_load((dagster_home(LakeLayout.open(tmp_path / "lake")) / "dagster.yaml").read_text())


def test_dagster_yaml_names_the_variable_and_holds_no_password(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_POSTGRES", URL)
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda name: object())
    text = (dagster_home(LakeLayout.open(tmp_path / "lake")) / "dagster.yaml").read_text()
    assert yaml.safe_load(text)["storage"] == {"postgres": {"postgres_url": {"env": "MILLRACE_POSTGRES"}}}
    monkeypatch.delenv("MILLRACE_POSTGRES")
    with pytest.raises(
        PostgresError, match="is in Postgres, and MILLRACE_POSTGRES is not set"
    ):  # else runs would be in two histories
        dagster_home(LakeLayout.open(tmp_path / "lake"))
    monkeypatch.setenv("MILLRACE_POSTGRES", URL)
    dagster_home(LakeLayout.open(tmp_path / "lake"))
    assert "SECRET" not in text and os.environ["MILLRACE_POSTGRES"].startswith("postgresql+psycopg2://")


def test_a_missing_driver_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_POSTGRES", URL)
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PostgresError, match=r"pip install 'millrace\[postgres\]'"):
        dagster_home(LakeLayout.open(tmp_path / "lake"))


@dg.op
def good():
    return None


@dg.job
def work():
    good()


@pytest.fixture
def server():
    """A real Postgres."""
    pytest.importorskip("dagster_postgres", reason="the extra `postgres` is not installed")
    try:
        with postgres_server() as found:
            yield found
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_a_real_server_holds_the_history_and_one_daemon_at_a_time(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_POSTGRES", server.url)
    lake = LakeLayout.open(tmp_path / "lake")
    assert runs(lake) == []  # Dagster has no tables there yet
    with open_instance(lake) as instance:
        done = work.execute_in_process(instance=instance)
        dead = instance.create_run_for_job(work, tags={PROCESS_TAG: "999999@5.00"}, status=dg.DagsterRunStatus.STARTED)
        tags = {PROCESS_TAG: "999999@5.00", HOST_TAG: "another"}
        elsewhere = instance.create_run_for_job(work, tags=tags, status=dg.DagsterRunStatus.STARTED)
        assert {run.run_id: run.is_alive for run in runs_in_progress(lake)} == {dead.run_id: False, elsewhere.run_id: None}
        assert fail_dead_runs(instance) == [dead.run_id]
        server.restart(kill=True)
        assert instance.get_run_by_id(dead.run_id).status == dg.DagsterRunStatus.FAILURE
        assert instance.get_run_by_id(elsewhere.run_id).status == dg.DagsterRunStatus.STARTED
    assert seconds_of_steps(lake, done.run_id)["good"] >= 0
    assert not (lake.dagster_home / "history").exists() or not list((lake.dagster_home / "history").rglob("*.db"))
    _locks(tmp_path, server, monkeypatch)
    server.stop()
    assert runs(lake) == []  # the database is away
    server.start()


def _locks(folder, server, monkeypatch):
    monkeypatch.setattr("pipelines.keeping.daemon_lock.ASKED_EVERY_S", 0.0)
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    with DaemonLock(folder / "b") as second:
        with DaemonLock(folder / "a") as first:
            assert first.why_not() == ""
            assert first._connection.exec_driver_sql("show tcp_keepalives_idle").scalar() == "30"  # a lost machine's lock ends
            assert "another machine runs the daemon" in second.why_not()
            server.stop()
            assert first.why_not() == ""  # nobody else gets it meanwhile
            assert "cannot be reached" in second.why_not()
            server.start()
            assert first.why_not() == ""
            assert "another machine runs the daemon" in second.why_not()
        assert second.why_not() == ""
