"""Conversations for a model that is small enough to train in a test."""

import json

import pyarrow as pa
import pyarrow.parquet as pq


def write_rows(folder, split, rows):
    folder.mkdir(parents=True, exist_ok=True)
    table = {
        "row_id": [f"{split}-{i}" for i in range(len(rows))],
        "messages": [json.dumps(row) for row in rows],
        "tools": pa.array([None] * len(rows), pa.string()),
        "session_id": [f"s{i}" for i in range(len(rows))],
    }
    pq.write_table(pa.table(table), folder / f"{split}.parquet")


def conversation(i):
    return [
        {"role": "user", "content": f"write add_{i}"},
        {"role": "assistant", "content": f"def add_{i}(a, b):\n    return a + b * {i}\n"},
    ]
