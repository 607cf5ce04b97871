"""A run stops after curation where its logs leave no row, or too few of them can be read."""

import json

import pytest

from resources.catalog.build import rebuild
from resources.catalog.catalog import open_catalog
from resources.catalog.comments import RELATIONS
from resources.catalog.enough_rows import shortage, why_empty
from resources.curating.record_counts import RecordCounts
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

PAIR = {"request": {"messages": [{"role": "user", "content": "hi"}]}, "response": {"choices": [{"message": {"content": "yo"}}]}}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """`good` has a row, `dead` is of no known format, `small` too, with few bytes; `other` has a record of another workload."""
    home = tmp_path_factory.mktemp("lake")
    for name, record in (("good", PAIR), ("dead", {"speaker": "x", "wrote": "y" * 200}), ("small", {"z": 1})):
        (home / name).mkdir()
        (home / name / "a.jsonl").write_text(json.dumps(record) + "\n")
    (home / "other").mkdir()
    others = [PAIR | {"workload_id": "tutor"}, {"speaker": "x", "wrote": "y" * 200}]
    (home / "other" / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in others))
    lake = LakeLayout.open(home / "lake")
    ingest(
        Tables(lake),
        "shop",
        {
            name: SourceSettings(uri=str(home / name), workloads={"tutor": "tutor"} if name == "other" else {})
            for name in ("good", "dead", "small", "other")
        },
    )
    rebuild(lake)
    return lake


@pytest.mark.parametrize(
    ("counts", "sources", "seeds", "said"),
    [
        (RecordCounts(1, 1, {}, {}), ["good", "small"], 0, ""),
        (RecordCounts(1, 1, {}, {}), ["good", "other"], 0, ""),
        (RecordCounts(2, 1, {}, {"ingest: unknown_format": 1}), ["good", "dead"], 0, "source dead left no row: its 1 object, "),
        (
            RecordCounts(2, 1, {}, {"ingest: unknown_format": 1}),
            ["good", "dead"],
            1,
            "(unknown_format: none of the first 1 records",
        ),
        (
            RecordCounts(100, 5, {}, {"ingest: broken": 95}),
            ["good"],
            0,
            "95 records are in quarantine (ingest: broken 95), and 5 rows of 100 records can",
        ),
        (RecordCounts(100, 50, {}, {"ingest: broken": 50}), ["good"], 0, ""),
        (
            RecordCounts(8, 0, {"clean: too_short": 8}, {}),
            ["good"],
            0,
            "8 were dropped and 0 are in quarantine (clean: too_short 8)",
        ),
        (RecordCounts(8, 0, {"clean: too_short": 8}, {}), ["good"], 1, ""),
        (RecordCounts(0, 0, {}, {}), ["good"], 0, "(none was read)"),
    ],
)
def test_what_stops_a_run(lake, counts, sources, seeds, said):
    found = shortage(lake, "shop", counts, sources, seeds)
    assert said in found if said else not found


def test_every_relation_without_rows_says_why(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    rebuild(lake)
    with open_catalog(lake) as connection:
        listed = connection.execute("select relation from relations where kind <> 'macro'").fetchall()
        empty = {name for (name,) in listed if not connection.execute(f"from {name} limit 1").fetchall()}
    assert empty == {name for name, said in RELATIONS.items() if "empty" in said}


def test_a_dataset_s_view_without_rows_says_why_and_a_query_that_leaves_none_does_not():
    assert why_empty("from shop_seed_examples_bad_lines_versions").endswith(": every line of the seeds could be read")
    assert why_empty("select * from DRIFT").startswith("no rows in drift: days are compared once")
    assert {
        why_empty("from shop_seed_examples_rows"),
        why_empty("from drift where alarm"),
        why_empty("select 1 where false"),
    } == {"no rows"}
