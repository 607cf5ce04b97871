"""A full disk while a file is being replaced: the old file stays, nothing half-written is left beside it."""

import errno
import os

import pytest

from resources.atomic import write_json, write_text


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
