"""A lake is a directory on a disk; where none can be made, one sentence says so."""

import errno
import shlex
import shutil

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from interaction_rows import interaction, store

from model_ops.files.columns import bare, sentence
from resources.lake.lake import LakeError, LakeLayout
from resources.lake.schemas import PARTITIONS, SCHEMAS
from resources.lake.sql_files import DamagedFileError, naming_damage
from resources.lake.tables import Tables


@pytest.mark.parametrize("below", ["/dev/null/x", "/dev/null/x/y", "/proc/x", "a-file/x", f"{'x' * 300}/lake"])
def test_where_no_folder_can_be_a_sentence_names_the_place(tmp_path, below):
    (tmp_path / "a-file").write_text("")
    with pytest.raises(LakeError, match=r"^no lake can be made at .*(x|y|lake) \(.+\): name a directory on a disk as --lake$"):
        LakeLayout.open(tmp_path / below)


@pytest.mark.parametrize("name", ["a[b]", "a*b", "a?b", "a|b", "a\\b", "a^b", "a%41b"])
def test_a_path_in_which_no_table_could_be_read_is_refused_and_nothing_is_made(tmp_path, name):
    with pytest.raises(LakeError, match="tables cannot lie in a path that has"):
        LakeLayout.open(tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["my lake", "läke 日本", "a#b", "50 %", "it's {so}", "a&b=c;d"])
def test_a_path_with_spaces_or_signs_holds_tables(tmp_path, name):
    tables = Tables(LakeLayout.open(tmp_path / name))
    store(tables, "interactions", [interaction(1, "a", "b", workload="a b")])
    [file] = tables.files("interactions")
    assert pq.read_metadata(file).num_rows == 1
    with duckdb.connect() as connection:
        read = connection.execute("select count(*) from read_parquet($files)", {"files": [file]})
        assert read.fetchall() == [(1,)]
    assert tables.lake.option == f"--lake {shlex.quote(str(tmp_path / name))}"


def test_a_disk_that_is_full_stays_the_disks_own_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("resources.lake.lake.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        LakeLayout.open(tmp_path / "lake")


def written(path, damage=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": [f"row {n} " * 20 for n in range(2_000)]}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    if damage == "middle":
        content[len(content) // 2 - 200 : len(content) // 2 + 200] = bytes(400)
    elif damage == "cut":
        content = content[: len(content) // 2]
    path.write_bytes(bytes(content))
    return path


@pytest.mark.parametrize("damage", ["middle", "cut"])
def test_a_damaged_file_is_named_with_its_version(tmp_path, damage):
    good, bad = written(tmp_path / "a" / "train.parquet"), written(tmp_path / "b" / "train.parquet", damage)
    (bad.parent / "manifest.json").write_text("{}")
    with pytest.raises(DamagedFileError) as said, naming_damage(lambda: [good, bad]), duckdb.connect() as connection:
        connection.execute(f"select sum(length(text)) from read_parquet(['{good}', '{bad}'])").fetchall()
    assert str(said.value).startswith(f"{bad} is damaged: restore it")
    assert f"remove the directory {bad.parent} (" in str(said.value)
    assert "\n" not in str(said.value)


def test_a_damaged_file_of_a_table_can_only_be_restored(tmp_path):
    bad = written(tmp_path / "tables" / "part.parquet", "cut")
    with (
        pytest.raises(DamagedFileError, match="is damaged: restore it from a copy of the lake, and try again"),
        naming_damage(lambda: [bad]),
    ):
        pq.read_table(bad)


def test_an_error_about_something_else_stays(tmp_path):
    good = written(tmp_path / "train.parquet")
    with pytest.raises(FileNotFoundError), naming_damage(lambda: [good, tmp_path / "none.parquet"]):
        pq.read_table(tmp_path / "none.parquet")


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
