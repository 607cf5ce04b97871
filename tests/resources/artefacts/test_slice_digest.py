"""The digest of a table slice: the same for the same rows however they lie, another for any other row."""

import pytest
from interaction_rows import days_of, interaction, store

from resources.artefacts.slice_digest import slice_digest
from resources.curating.clean import clean
from resources.curating.curation import CurationSettings
from resources.lake import Lake
from resources.tables import Tables


@pytest.fixture
def tables(tmp_path):
    return Tables(Lake.open(tmp_path / "lake"))


def test_digest_follows_content_not_history(tables, tmp_path):
    rows = [interaction(n, "Go", f"answer {n} of a few words, so that shingles of either length tell it", day=n % 2) for n in range(6)]
    store(tables, "interactions", rows)
    digest = slice_digest(tables, "interactions", "tutor")
    store(tables, "interactions", rows[::-1])
    assert slice_digest(tables, "interactions", "tutor") == digest
    clean(tables, "tutor", days_of(rows), CurationSettings())
    cleaned = slice_digest(tables, "cleaned_interactions", "tutor")
    clean(tables, "tutor", days_of(rows), CurationSettings(near_duplicates={"ngram": 3}))
    assert slice_digest(tables, "cleaned_interactions", "tutor") != cleaned
    store(tables, "interactions", [*rows[:5], interaction(5, "Go", "away", day=1)])
    assert slice_digest(tables, "interactions", "tutor") != digest
    assert slice_digest(tables, "interactions", "nobody") == slice_digest(tables, "feedback", "nobody")
    with pytest.raises(ValueError, match="quarantine has no slice digest"):
        slice_digest(tables, "quarantine", "tutor")
