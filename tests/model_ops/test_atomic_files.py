"""A full disk while a file is being replaced or appended to: the old file stays, nothing half-written is left beside it."""

import ast
import errno
import os
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from model_ops.files import Home, LocalPath, bare, column, renamed_when_complete, sentence, write_json, write_text
from model_ops.jobs import Settings
from resources.lake.sql_files import write_rows
from tests.command import PROJECT


class Section(Settings):
    enabled: bool = True
    model: Annotated[str, LocalPath("folder", "a model, or `last`", ("last",))] | None = None
    tool: Annotated[str, LocalPath("program", "a program")] | None = None


def read(folder, **given):
    return Section.model_validate(given, context=Home(folder, lambda path, home: str(home / path)))


def test_a_path_is_absolute_and_a_word_stays(tmp_path):
    (tmp_path / "drafter").mkdir()
    assert read(tmp_path, model="drafter").model == str(tmp_path / "drafter")
    assert read(tmp_path, model="last").model == "last" and read(tmp_path).model is None
    assert read(tmp_path, tool="/bin/sh").tool == "/bin/sh"


def test_what_is_not_there_is_refused_unless_the_section_is_off(tmp_path):
    with pytest.raises(ValidationError, match=r"there is no directory .*none; give a model, or `last`"):
        read(tmp_path, model="none")
    with pytest.raises(ValidationError, match=r"there is no program .*none; give a program"):
        read(tmp_path, tool="none")
    assert read(tmp_path, enabled=False, model="none").model == str(tmp_path / "none")


def test_settings_of_a_job_keep_their_paths():
    assert Section(model="none", tool="none").model == "none"


def test_a_text_that_can_be_no_path_is_one_sentence(tmp_path):
    with pytest.raises(ValidationError, match="this is not a path on this machine; give a model"):
        read(Path(tmp_path), model="~nobody-of-this-name/x")


ROWS = pa.schema([column("row_id", pa.string(), description="id of the row"), ("tokens", pa.int64())])


def test_a_column_says_what_it_holds_until_its_schema_is_bare():
    assert [sentence(ROWS, name) for name in ("row_id", "tokens", "other")] == ["id of the row", None, None]
    assert bare(ROWS).equals(pa.schema([("row_id", pa.string()), ("tokens", pa.int64())]), check_metadata=True)


def test_another_wording_gives_the_same_file(tmp_path):
    rows = pa.table({"row_id": ["a", None], "tokens": [1, 2]})
    for name, schema in (("told", ROWS), ("untold", bare(ROWS))):
        write_rows(rows.to_reader(), tmp_path / name, schema)
        write_rows(rows.cast(schema).to_reader(), tmp_path / f"{name}_rows")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert pq.read_schema(tmp_path / "told").equals(bare(ROWS), check_metadata=True)


def test_who_writes_rows_himself_leaves_the_sentences_out():
    told, wrong = set(), []
    files = [path for package in ("model_ops", "resources") for path in (PROJECT / package).rglob("*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(getattr(call, "id", "") == "column" for call in _called(node)):
                told.add(node.targets[0].id)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            for given in node.keywords if isinstance(node, ast.Call) else ():
                if given.arg == "schema" and isinstance(given.value, ast.Name) and given.value.id in told:
                    wrong.append(f"{path.relative_to(PROJECT)}:{node.lineno}: write schema=bare({given.value.id})")
    assert len(told) > 8 and wrong == []


def _called(node):
    return [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "folder" / "alias.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 2\n}\n'
    assert [child.name for child in path.parent.iterdir()] == ["alias.json"]


def test_a_full_disk_leaves_the_old_file_and_no_remains(tmp_path, monkeypatch):
    path = tmp_path / "alias.json"
    write_text(path, "old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [child.name for child in tmp_path.iterdir()] == ["alias.json"]


def test_a_large_file_appears_when_it_is_complete_and_replaces_what_a_killed_process_left(tmp_path):
    path = tmp_path / "folder" / "model.safetensors"
    path.parent.mkdir()
    (path.parent / ".model.safetensors.unfinished").write_bytes(b"a longer rest of a killed process")
    with renamed_when_complete(path, flush=True) as temporary:
        temporary.write_bytes(b"weights")
        assert not path.exists()
        assert list(path.parent.glob("*.safetensors")) == []
    assert path.read_bytes() == b"weights"
    assert [child.name for child in path.parent.iterdir()] == ["model.safetensors"]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "states"
    path.write_text("old")
    with pytest.raises(ValueError, match="no shard"), renamed_when_complete(path) as temporary:
        temporary.write_text("part")
        raise ValueError("no shard")
    assert path.read_text() == "old" and [child.name for child in tmp_path.iterdir()] == ["states"]
