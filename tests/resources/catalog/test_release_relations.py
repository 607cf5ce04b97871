"""Releases in SQL: what is served, what was decided, which gates held, and who was champion from when to when."""

import json

import pytest

from resources.catalog.build import rebuild
from resources.catalog.catalog import query
from resources.catalog.dataset_relations import RELEASE_RELATIONS
from resources.endpoints.approvals import record_approval, roll_back, withdraw
from resources.endpoints.endpoint_log import AUTOMATIC, Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseRef

ANA, BO = Actor("ana", "MILLRACE_USER", "read 20 answers"), Actor("bo", "system account", "wrong prices")


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def rows(lake, sql):
    rebuild(lake)
    return [tuple(row.values()) for row in query(lake, sql).to_pylist()]


def test_an_empty_lake_has_the_relations(lake):
    assert rows(lake, " union all ".join(f"select count(*) as n from {name}" for name in RELEASE_RELATIONS)) == [(0,)] * 5


def test_every_relation_and_column_says_what_it_is(lake):
    names = ", ".join(f"'{name}'" for name in RELEASE_RELATIONS)
    assert rows(lake, f"select table_name from duckdb_tables() where table_name in ({names}) and comment is null") == []
    assert rows(lake, f"select column_name from duckdb_columns() where table_name in ({names}) and comment is null") == []


def test_a_history_of_releases_in_sql(lake, make_release):
    a, b, c = (make_release(lake, number) for number in (1, 2, 3))
    endpoint = Endpoint(lake, "tutor")
    for directory, by in ((a, AUTOMATIC), (b, ANA)):
        record_approval(lake, directory, by)
        endpoint.promote(ReleaseRef.of(directory), by)
    record_approval(lake, b, BO)
    roll_back(lake, a, BO)
    endpoint.nominate(ReleaseRef.of(c))
    found = rows(
        lake,
        "select version, is_champion, is_previous, is_candidate, standing, decided_by, approvals, passed "
        "from releases order by created_at",
    )
    assert found == [
        (a.name, True, False, False, "approved", "recipe: approval automatic", 1, True),
        (b.name, False, True, False, "withdrawn", "bo", 2, True),
        (c.name, False, False, True, None, None, 0, True),
    ]
    assert rows(lake, "select action, release, who, identity_from, reason, replaces, len(gates), intact from approvals") == [
        ("approved", a.name, AUTOMATIC.name, "recipe", None, None, 1, True),
        ("promoted", a.name, AUTOMATIC.name, "recipe", None, None, 1, True),
        ("approved", b.name, "ana", "MILLRACE_USER", "read 20 answers", None, 1, True),
        ("promoted", b.name, "ana", "MILLRACE_USER", "read 20 answers", a.name, 1, True),
        ("approved", b.name, "bo", "system account", "wrong prices", None, 1, True),
        ("rolled back", a.name, "bo", "system account", "wrong prices", b.name, 1, True),
        ("nominated", c.name, "pipeline", "pipeline", None, None, 1, True),
    ]
    assert rows(
        lake,
        "select release, began_by, ended_by, promoted_by, replaced_by, replaced_because, served_until is null, "
        "served_until >= served_from from champions",
    ) == [
        (a.name, "promoted", "promoted", AUTOMATIC.name, "ana", "read 20 answers", False, True),
        (b.name, "promoted", "rolled back", "ana", "bo", "wrong prices", False, True),
        (a.name, "rolled back", None, "bo", None, None, True, None),
    ]
    assert rows(lake, f"select release, name, wanted, measured, passed from gates where release = '{c.name}'") == [
        (c.name, "recovery", 0.99, 0.999, True)
    ]
    assert rows(
        lake,
        "select count(*) from releases join artefacts on artefacts.path = releases.path "
        "where releases.digest = artefacts.digest and target = 'tutor/sft_model' and drafter is null",
    ) == [(3,)]


def test_who_served_at_a_moment_can_be_asked(lake, make_release):
    a, b = make_release(lake, 1), make_release(lake, 2)
    for directory in (a, b):
        record_approval(lake, directory, ANA)
        Endpoint(lake, "tutor").promote(ReleaseRef.of(directory), ANA)
    moment = "(select max(ts) - interval 1 microsecond from approvals where action = 'promoted')"
    asked = f"select release from champions where served_from <= {moment} and ({moment} < served_until or served_until is null)"
    assert rows(lake, asked) == [(a.name,)]


def test_two_workloads_do_not_mix(lake, make_release):
    for workload in ("tutor", "shop"):
        directory = make_release(lake, 1, workload)
        record_approval(lake, directory, ANA)
        Endpoint(lake, workload).promote(ReleaseRef.of(directory), ANA)
    withdrawn = make_release(lake, 2, "shop")
    withdraw(lake, withdrawn, BO)
    assert rows(
        lake,
        "select workload, count(*), count(*) filter (is_champion), count(*) filter (standing = 'withdrawn') "
        "from releases group by all order by all",
    ) == [("shop", 2, 1, 1), ("tutor", 1, 1, 0)]
    assert rows(lake, "select workload, served_until from champions order by all") == [("shop", None), ("tutor", None)]


def test_a_broken_log_shows_what_is_left_and_where_it_broke(lake, make_release):
    directory = make_release(lake, 1)
    for by in (ANA, BO, ANA):
        record_approval(lake, directory, by)
    folder = lake.root / "endpoints" / "log" / "tutor"
    second = folder / "000002.json"
    second.write_text(json.dumps({**json.loads(second.read_text()), "by": "eve"}))
    assert rows(lake, "select number, who, intact from approvals") == [(1, "ana", True), (2, "eve", False), (3, "ana", True)]
    second.write_text("{")
    assert rows(lake, "select number, intact from approvals") == [(1, True), (3, False)]
    lake.endpoint("tutor").write_text("{")
    assert rows(lake, "select version, is_champion from releases") == [(directory.name, False)]
