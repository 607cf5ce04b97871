"""What the commit log alone can say of a table."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from interaction_rows import interaction, store

from model_ops.files.columns import bare, sentence
from resources.lake.lake import LakeLayout
from resources.lake.schemas import PARTITIONS, SCHEMAS
from resources.lake.tables import Tables


def test_whether_a_column_holds_anything(tmp_path):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    assert not tables.holds("interactions", "tutor", "user_hash")
    store(tables, "interactions", [interaction(1, "a", "b"), interaction(2, "a", "b", day=1)])
    assert not tables.holds("interactions", "tutor", "user_hash") and tables.holds("interactions", "tutor", "messages")
    store(tables, "interactions", [interaction(2, "a", "b", day=1), interaction(3, "a", "b", day=1, user_hash="h")])
    assert tables.holds("interactions", "tutor", "user_hash") and not tables.holds("interactions", "other", "user_hash")


def test_a_table_that_is_made_anew_is_not_taken_for_the_one_that_was_open(tmp_path):
    """The commit log is read once a process, and then its news only."""
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    for text in ("a", "b", "c"):
        tables.append("erasures", _erasure(text))
    assert tables.open("erasures").version() == 2
    again = Tables(LakeLayout.open(tmp_path / "lake"))
    again.append("erasures", _erasure("d"))
    assert tables.open("erasures").version() == 3 and len(tables.files("erasures")) == 4
    shutil.rmtree(tmp_path / "lake" / "tables")
    assert tables.open("erasures") is None
    for text in ("x", "y", "z", "u", "v"):
        tables.append("erasures", _erasure(text))
    assert sorted(tables.open("erasures").to_pyarrow_table()["sha256"].to_pylist()) == ["u", "v", "x", "y", "z"]


def test_sentences_of_columns_are_in_no_commit_and_change_no_table_that_is_there(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    before = bare(SCHEMAS["erasures"])  # as tables were written that had no sentences
    write_deltalake(lake.table("erasures"), _erasure("a").cast(before), partition_by=PARTITIONS["erasures"])
    tables = Tables(lake)
    tables.append("erasures", _erasure("b"))
    tables.replace("erasures", _erasure("c"), workload="tutor")
    log = [path.read_text() for path in sorted((lake.table("erasures") / "_delta_log").glob("*.json"))]
    assert ["metaData" in entry for entry in log] == [True, False, False]
    assert not any(sentence(SCHEMAS["erasures"], "kind") in entry for entry in log)
    for file in tables.files("erasures"):
        schema = pq.read_schema(file)
        assert schema.equals(bare(schema), check_metadata=True), file


def _erasure(text: str) -> pa.Table:
    return pa.Table.from_pylist([{"workload": "tutor", "kind": "user", "sha256": text, "ts": None}], schema=SCHEMAS["erasures"])
