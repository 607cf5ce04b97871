"""Errors of readers name the damaged file and the remedy, whatever reads it; other errors stay what they are."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resources.lake.sql_files import DamagedFileError, naming_damage


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
    assert str(said.value).startswith(f"{bad} is damaged: restore it") and f"remove the directory {bad.parent} (" in str(
        said.value
    )
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
