"""A lake with a workload from logs to a release, made once for the tests of a file; each test has a copy of it."""

import shutil

import pytest
from filled_lake import filled, write_logs

from resources.lake.lake import LakeLayout


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The lake as it was made, and the folder of its logs."""
    home = tmp_path_factory.mktemp("filled")
    write_logs(home / "logs")
    return filled(home / "lake", home / "logs"), home / "logs"


@pytest.fixture
def lake(whole, tmp_path):
    shutil.copytree(whole[0].root, tmp_path / "lake")
    return LakeLayout.open(tmp_path / "lake")
