"""A full disk while a file is being replaced or appended to: the old file stays, nothing half-written is left beside it."""

import errno
import os

import pytest

from model_ops.files.atomic_files import renamed_when_complete, write_json, write_text


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
