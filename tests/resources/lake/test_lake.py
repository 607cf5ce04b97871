"""A lake is a directory on a disk; where none can be made, one sentence says so."""

import errno

import pytest

from resources.lake.lake import LakeError, LakeLayout


@pytest.mark.parametrize("below", ["/dev/null/x", "/dev/null/x/y", "/proc/x", "a-file/x", f"{'x' * 300}/lake"])
def test_where_no_folder_can_be_a_sentence_names_the_place(tmp_path, below):
    (tmp_path / "a-file").write_text("")
    with pytest.raises(LakeError, match=r"^no lake can be made at .*(x|y|lake) \(.+\): name a directory on a disk as --lake$"):
        LakeLayout.open(tmp_path / below)


def test_a_disk_that_is_full_stays_the_disks_own_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("resources.lake.lake.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        LakeLayout.open(tmp_path / "lake")
