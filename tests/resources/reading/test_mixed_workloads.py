"""A source whose records name several workloads is told of, and read as before."""

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest, notes_on
from resources.sources.sources import SourceSettings
from tests.resources.inspecting.test_survey import PAIR, put


def asked(number, workload):
    return PAIR | {"workload_id": workload, "request": {"model": "m", "messages": [{"role": "user", "content": f"q {number}"}]},
        "response": PAIR["response"] | {"id": f"r{number}"}}  # fmt: skip


def read(tmp_path, workloads):
    put(tmp_path / "log.jsonl", *[asked(number, "shop" if number % 3 == 0 else "farm") for number in range(9)])
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    report = ingest(tables, "farm", {"app": SourceSettings(uri=str(tmp_path / "log.jsonl"), workloads=workloads)})
    return list(notes_on(report)), sum(tables.rows_by_day("interactions", "farm").values())


def test_rows_of_another_workload_are_told_with_the_remedy(tmp_path):
    notes, count = read(tmp_path, {})
    assert notes == [
        "the records of source app name 2 workloads, farm (6), shop (3), and all of them become rows of farm; "
        "sources.app.workloads: {shop: shop} keeps them apart, and {shop: farm} says that they are one"
    ]
    assert count == 9


def test_a_source_that_says_what_its_names_mean_is_not_told_of(tmp_path):
    assert read(tmp_path / "apart", {"shop": "shop"}) == ([], 6)
    assert read(tmp_path / "one", {"shop": "farm"}) == ([], 9)
