"""What tests of decisions share: a trained lake, and a copy of it for each test."""

import shutil

import pytest

from resources.lake.lake import LakeLayout
from tests.resources.deciding.small_lake import trained_lake


@pytest.fixture(scope="session")
def kept_lake(tmp_path_factory):
    return trained_lake(tmp_path_factory.mktemp("decided"))


@pytest.fixture
def lake(kept_lake, tmp_path):
    shutil.copytree(kept_lake.root, tmp_path / "lake")
    return LakeLayout.open(tmp_path / "lake")
