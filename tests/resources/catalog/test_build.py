"""The catalog follows the lake: parts that changed are made again, the others are not, and the result is the same."""

import shutil

import duckdb
import pytest
from interaction_rows import interaction, store, thumb

from resources.artefacts.registry import Registry
from resources.catalog import build
from resources.catalog.build import publish, rebuild
from resources.catalog.catalog import query
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from tests.thorough_cases import thorough_except


@pytest.fixture
def lake(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    store(Tables(lake), "interactions", [interaction(1, "Go", "north")])
    artefact(lake, "base_model", 1)
    rebuild(lake)
    return lake


def artefact(lake, name, number, inputs=()):
    registry = Registry(lake, "tutor")
    draft = registry.draft("model", name, name, ("model_ops/jobs/job.py",), {"n": number}, [item.as_input() for item in inputs])
    if draft.finished is None:
        (draft.directory / "config.json").write_text(str(number))
    return draft.finished or registry.finish(draft, {})


def shown(lake):
    """All that a catalog says, comments included."""
    found = {}
    with duckdb.connect(str(lake.catalog), read_only=True) as connection:
        connection.execute("set timezone = 'UTC'")
        relations = connection.execute("select relation, kind, comment from relations").fetchall()
        found["columns"] = connection.execute("select * from relation_columns order by all").fetchall()
        for relation, kind, _ in relations:
            if kind != "macro" and relation not in ("relation_columns", "relations"):
                found[relation] = sorted(map(str, connection.execute(f'from "{relation}"').fetchall()))
        found["relations"] = relations
    return found


def test_where_nothing_changed_nothing_is_made(lake, monkeypatch):
    before = lake.catalog.stat()
    monkeypatch.setattr(build, "_build", None)
    assert publish(lake) == []
    assert lake.catalog.stat() == before


def test_an_artefact_that_is_found_finished_is_no_change(lake):
    base = artefact(lake, "base_model", 2)
    publish(lake)
    assert artefact(lake, "base_model", 2) == base and publish(lake) == []
    artefact(lake, "base_model", 1)
    assert publish(lake) == ["artefacts"]


def test_what_changed_is_made_again_and_nothing_else(lake, monkeypatch):
    made, original = [], build._create_table_view
    monkeypatch.setattr(build, "_create_table_view", lambda *given: (made.append(given[2]), original(*given))[1])
    store(Tables(lake), "feedback", [thumb(1, interaction_id="i1")])
    assert publish(lake) == ["feedback"] and made == ["feedback"]
    assert query(lake, "select value from feedback").to_pylist() == [{"value": 1.0}]
    base = artefact(lake, "base_model", 2)
    artefact(lake, "sft_model", 1, [base])
    assert publish(lake) == ["artefacts"] and made == ["feedback"]
    assert query(lake, "select count(*) as n from artefacts where is_current").to_pylist() == [{"n": 2}]


def test_step_by_step_it_is_what_building_it_anew_gives(lake, make_release):
    tables = Tables(lake)
    steps = [
        lambda: store(tables, "interactions", [interaction(2, "Go", "south", day=1)]),
        lambda: make_release(lake, 1),
        lambda: artefact(lake, "base_model", 2),
        lambda: store(
            tables,
            "decisions",
            [
                dict.fromkeys(SCHEMAS["decisions"].names)
                | {
                    "workload": "tutor",
                    "stage": "clean",
                    "dt": interaction(1, "", "")["dt"],
                    "interaction_id": "i1",
                    "rule": "kept",
                    "kept": True,
                }
            ],
        ),
        lambda: make_release(lake, 2),
        lambda: artefact(lake, "base_model", 1),
        lambda: tables.replace("interactions", SCHEMAS["interactions"].empty_table(), workload="tutor"),
        lambda: shutil.rmtree(next(lake.root.glob("models/tutor/base_model/*/manifest.json")).parent),
    ]
    for number, step in enumerate(steps):
        step()
        assert len(publish(lake)) == 1, number
        followed = shown(lake)
        rebuild(lake)
        assert followed == shown(lake), number


@pytest.mark.parametrize("lost", thorough_except(["catalog", "damaged"], ["catalog", "state", "damaged", "swapped", "code"]))
def test_where_it_is_not_known_what_the_catalog_shows_all_is_built(lake, lost, monkeypatch, tmp_path):
    state = lake.root / ".remembered" / "catalog.json"
    before = shown(lake)
    if lost == "catalog":
        lake.catalog.unlink()
    elif lost == "state":
        state.unlink()
    elif lost == "damaged":
        state.write_text('{"code": 1}')
    elif lost == "swapped":
        shutil.copyfile(lake.catalog, tmp_path / "copy")
        shutil.move(tmp_path / "copy", lake.catalog)
    else:
        monkeypatch.setattr(build, "_code", lambda: "another")
    assert len(publish(lake)) == len(SCHEMAS) + 1
    assert shown(lake) == before and publish(lake) == []


def test_a_catalog_that_another_process_swapped_meanwhile_is_not_built_upon(lake):
    """Two processes publish at once: neither takes the other's file for the one that it knows."""
    known = build._built_from(lake)
    store(Tables(lake), "feedback", [thumb(1, interaction_id="i1")])
    now = build._lake_as_it_is(lake)
    store(Tables(lake), "interactions", [interaction(2, "Go", "south", day=1)])
    rebuild(lake)  # the other process
    build._build(lake, now, known, {"feedback"})
    assert query(lake, "select count(*) as n from interactions").to_pylist() == [{"n": 2}]
    followed = shown(lake)
    publish(lake)
    assert shown(lake) == followed
