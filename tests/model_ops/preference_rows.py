"""Preference rows for a model that is small enough to train in a test."""

import json

import pyarrow as pa
import pyarrow.parquet as pq


def asked(i):
    return [
        {"role": "system", "content": "you write functions in python, and nothing else than functions"},
        {"role": "user", "content": f"write add_{i} for two numbers"},
    ]


def said(text):
    return json.dumps([{"role": "assistant", "content": text}])


def pair(i, chosen=None, rejected=None, prompt=None, **more):
    return {
        "row_id": f"pair-{i}",
        "prompt": json.dumps(prompt or asked(i)),
        "tools": None,
        "chosen": chosen or said(f"def add_{i}(a, b):\n    return a + b\n"),
        "rejected": rejected or said(f"def add_{i}(a, b):\n    return a - b * {i}, so I think\n"),
        "weight": 1.0,
        "reason": "edited",
        **more,
    }


def verdict(i, desirable, text=None, **more):
    good = f"def add_{i}(a, b):\n    return a + b\n"
    return {
        "row_id": f"row-{i}",
        "prompt": json.dumps(asked(i)),
        "tools": None,
        "answer": said(text or (good if desirable else "I cannot do that")),
        "desirable": desirable,
        "weight": 1.0,
        "reason": "thumb",
        **more,
    }


def write_preferences(folder, pairs=(), unpaired=(), split="train"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ((split, pairs), (f"unpaired_{split}", unpaired)):
        if rows:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            columns["tools"] = pa.array(columns["tools"], pa.string())
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder
