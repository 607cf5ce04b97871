"""Counts of records: from manifests, and what does not add up."""

import pytest

from resources.curating.record_counts import CountsError, RecordCounts
from resources.manifests.manifest import Manifest

COUNTS = {"read": 4, "kept": 2, "dropped": {"clean: error": 1}, "quarantined": {"ingest: wrong_type": 1}}


def test_counts_are_read_from_manifests():
    counts = RecordCounts.of(Manifest.model_construct(metrics={"read": 3, "records": COUNTS}))
    assert counts.adds_up and (counts.read, counts.rows) == (4, 2)
    assert counts.as_metrics() == {**COUNTS, "elsewhere": 0}
    assert counts.as_rows() == [
        {"stage and rule": "clean: error", "records": 1},
        {"stage and rule": "ingest: wrong_type", "records": 1},
    ]


def test_a_record_that_is_lost_is_an_error():
    with pytest.raises(CountsError, match="5 records were read, but 2 kept"):
        RecordCounts(5, 2, COUNTS["dropped"], COUNTS["quarantined"]).check()
