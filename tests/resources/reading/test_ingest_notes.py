"""Notes on an ingest: what a run says of records that it could not read."""

import json

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingest_notes import notes_on
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings


def test_a_run_counts_the_records_in_quarantine_beside_whole_objects(tmp_path):
    good = {"prompt": "Why?", "completion": "Because."}
    lines = [good, {**good, "suffix": "and so on"}, {"prompt": "What?", "suffix": "more of it", "completion": "That."}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "b.jsonl").write_text(json.dumps({"some": "thing"}))
    sources = {name: SourceSettings(uri=str(tmp_path / f"{name}.jsonl")) for name in ("a", "b")}
    report = ingest(Tables(LakeLayout.open(tmp_path / "lake")), "shop", sources)
    notes = [note for note in notes_on(report) if "quarantine" in note]
    assert [note.split(" (")[0].split(":")[0] for note in notes] == [
        "1 object went to quarantine as a whole",
        "2 records went to quarantine",
    ]
