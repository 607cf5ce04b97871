"""Laws of the ingest, on arbitrary lines: twice is once, order does not matter, counts add up, nothing raises."""

import json
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

TABLES = ("interactions", "feedback", "quarantine", "decisions", "objects")
LAWS = settings(max_examples=3)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(max_size=12)
pairs = st.builds(
    lambda identity, text, answer, ts: json.dumps(
        {
            "timestamp": ts,
            "request": {"messages": [{"role": "user", "content": text}]},
            "response": {"id": identity, "choices": [{"message": {"role": "assistant", "content": answer}}]},
        }
    ),
    st.sampled_from(["1", "2", "3", "", None]),
    texts,
    texts,
    st.sampled_from([1780300000, 1780400000]),
)
odd_pairs = st.builds(
    lambda request, response: json.dumps({"request": request, "response": response}), json_values, json_values
)
odd_messages = st.builds(
    lambda messages, message, ts: json.dumps(
        {"timestamp": ts, "request": {"messages": messages}, "response": {"choices": [{"message": message}] * 2}}
    ),
    json_values,
    json_values,
    json_values,
)
thumbs = st.builds(
    lambda target, value: json.dumps({"response_id": target, "value": value, "timestamp": 1780300000}),
    st.sampled_from(["1", "2", None]),
    json_values,
)
junk = st.binary(max_size=30).map(lambda line: line.replace(b"\n", b""))
lines = (
    st.one_of(pairs, odd_pairs, odd_messages, thumbs, json_values.map(json.dumps)).map(
        lambda line: line.encode("utf-8", "surrogatepass")
    )
    | junk
)
files = st.lists(st.lists(lines, max_size=6).map(b"\n".join), min_size=1, max_size=3)


def content(tables, names=TABLES):
    found = {}
    for name in names:
        opened = tables.open(name)
        rows = opened.to_pyarrow_table().to_pylist() if opened else []
        found[name] = sorted(json.dumps(row, default=str) for row in rows)
    return found


def put(logs, file, number):
    path = logs / f"dt=2026-06-0{number + 1}" / f"{number}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file)


@pytest.mark.slow
@LAWS
@given(files)
def test_ingest_twice_is_once_and_the_counts_add_up(contents):
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(contents):
            put(Path(folder) / "logs", file, number)
        sources = {"gateway": SourceSettings(uri=f"{folder}/logs")}
        tables = Tables(LakeLayout.open(f"{folder}/lake"))
        total = ingest(tables, "w", sources).total
        before = content(tables)
        assert total.rows == len(before["interactions"]) and total.quarantined == len(before["quarantine"])
        assert total.repeated == len(before["decisions"]) and total.feedback == len(before["feedback"])
        assert ingest(tables, "w", sources).total.read == 0
        assert content(tables) == before
        for path in Path(folder, "logs").rglob("*.jsonl"):
            path.touch()
        with patch("resources.sources.ledger.digests", return_value=[]):  # else their contents would be known
            again = ingest(tables, "w", sources).total
        assert again == total and content(tables, TABLES[:4]) == {name: before[name] for name in TABLES[:4]}


@pytest.mark.slow
@LAWS
@given(files, st.randoms(use_true_random=False))
def test_the_order_of_objects_does_not_matter(contents, random):
    with tempfile.TemporaryDirectory() as folder:
        numbers = list(range(len(contents)))
        random.shuffle(numbers)
        sources = {"gateway": SourceSettings(uri=f"{folder}/logs")}
        piecewise, whole = (Tables(LakeLayout.open(f"{folder}/{name}")) for name in ("piecewise", "whole"))
        for number in numbers:
            put(Path(folder) / "logs", contents[number], number)
            ingest(piecewise, "w", sources)
        ingest(whole, "w", sources)
        assert content(piecewise) == content(whole)


@LAWS
@given(st.lists(pairs.map(str.encode), min_size=1, max_size=5), st.lists(junk, max_size=5), st.randoms())
def test_junk_costs_no_good_line(good, bad, random):
    mixed = [*good, *(line for line in bad if not line.lstrip().startswith((b"{", b"[")))]
    random.shuffle(mixed)
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder) / "logs", b"\n".join(mixed), 0)
        tables = Tables(LakeLayout.open(f"{folder}/lake"))
        total = ingest(tables, "w", {"gateway": SourceSettings(uri=f"{folder}/logs")}).total
        assert total.rows + total.repeated == len(good)
