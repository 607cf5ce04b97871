"""The text of a quarantined record goes where it names somebody erased, and stays where nobody is erased."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from resources.digests.user_hash import key_check, keyed_hash
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

ANSWER = {"role": "assistant", "content": "good day"}


@pytest.mark.parametrize("erased, kept", [("ann-7", ["bob-8"]), (None, ["ann-7", "bob-8"])])
def test_text_of_the_erased_is_emptied_and_of_others_is_not(tmp_path, erased, kept):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    good = {"request": {"messages": [{"role": "user", "content": "hello"}]}, "response": {"choices": [{"message": ANSWER}]}}
    lines = [json.dumps({**good, "id": str(number)}) for number in range(8)]
    (tmp_path / "log.jsonl").write_text("\n".join([*lines, '{"user": "ann-7", cut', '{"user": "bob-8", cut']) + "\n")
    if erased:
        tombstone = {
            "workload": "w", "kind": "user", "sha256": keyed_hash(erased), "ts": datetime.now(UTC), "key_check": key_check(),
            "reason": "asked", "who": "ana",
        }  # fmt: skip
        tables.append("erasures", pa.Table.from_pylist([tombstone], schema=SCHEMAS["erasures"]))
    report = ingest(tables, "w", {"s": SourceSettings(uri=str(tmp_path / "log.jsonl"))})
    raw = [str(row["raw"]) for row in tables.open("quarantine").to_pyarrow_table().to_pylist() if row["raw"]]
    assert report.total.quarantined == 2
    assert [name for name in ("ann-7", "bob-8") if any(name in text for text in raw)] == kept
