"""Its place lets the rooms' tests import `interaction_rows` from this folder."""

import pytest


@pytest.fixture
def tables(tmp_path):
    """The tables of an empty lake."""
    from resources.lake import LakeLayout, Tables

    return Tables(LakeLayout.open(tmp_path / "lake"))
