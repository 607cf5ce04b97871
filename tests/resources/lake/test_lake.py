"""A lake is a directory on a disk; where none can be made, one sentence says so."""

import errno
import shlex

import duckdb
import pyarrow.parquet as pq
import pytest
from interaction_rows import interaction, store

from resources.lake.lake import LakeError, LakeLayout
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
