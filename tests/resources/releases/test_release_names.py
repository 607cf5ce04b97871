"""What a person calls a release, and when so few characters are too few."""

import os

import pytest

from resources.lake.lake import LakeLayout
from resources.releases.release import ReleaseError, find_release


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def test_a_release_by_version_beginning_workload_and_directory(lake, make_release, monkeypatch):
    directory = make_release(lake, 1)
    version = directory.name
    for text, sure in (
        (version, True),
        (f"tutor/{version}", True),
        (str(directory), True),
        (f"{directory}/", True),
        (version[:6], True),
        (version[:5], False),
        (f"tutor/{version[:5]}", False),
        (version[:1], False),
    ):
        named = find_release(lake, text)
        assert (named.directory, named.sure) == (directory, sure), text
    monkeypatch.chdir(directory)
    assert find_release(lake, ".").directory == directory


@pytest.mark.parametrize("text", ["", "/", "tutor/", "zzzz", "other/", ".."])
def test_what_names_no_release_is_one_sentence(lake, make_release, text):
    version = make_release(lake, 1).name
    with pytest.raises(ReleaseError, match="names no release") as raised:
        find_release(lake, text)
    assert f"tutor/{version}" in str(raised.value)


def test_a_version_of_two_workloads_needs_the_workload(lake, make_release):
    for workload in ("tutor", "shop"):
        make_release(lake, 1, workload).rename(lake.artefacts("release") / workload / "aaaaaaaaaaaa")
    with pytest.raises(ReleaseError, match=r"more than one release .*(shop|tutor)/aaaaaaaaaaaa"):
        find_release(lake, "aaaaaaaaaaaa")
    assert find_release(lake, "shop/aaaaaaaaaaaa").directory.parent.name == "shop"
    assert find_release(lake, "aaaa", workload="shop").directory.parent.name == "shop"


def test_a_whole_version_is_meant_before_the_beginning_of_another(lake, make_release):
    for number, name in ((1, "abcdef"), (2, "abcdef12")):
        make_release(lake, number).rename(lake.artefacts("release") / "tutor" / name)
    assert find_release(lake, "abcdef").directory.name == "abcdef"
    with pytest.raises(ReleaseError, match="more than one"):
        find_release(lake, "abcd")


def test_a_directory_of_another_lake_is_refused(lake, make_release, tmp_path):
    elsewhere = make_release(LakeLayout.open(tmp_path / "other"), 1)
    with pytest.raises(ReleaseError, match="name its own lake with --lake"):
        find_release(lake, str(elsewhere))


def test_many_releases_are_not_all_listed(lake, make_release):
    for number in range(12):
        os.utime(make_release(lake, number) / "manifest.json", (number, number))
    with pytest.raises(ReleaseError, match="and 2 more"):
        find_release(lake, "zzzz")
