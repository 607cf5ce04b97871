"""Prompts that a model answers while it trains."""

import json

import pyarrow as pa
import pyarrow.parquet as pq


def write_asked(folder):
    """Prompts, and a grading function whose grades are nearly all unlike."""
    (folder / "prompts").mkdir()
    for split, numbers in (("train", range(12)), ("validation", range(20, 24))):
        rows = [{"row_id": f"p{i}", "messages": json.dumps([{"role": "user", "content": f"say {i}"}])} for i in numbers]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"prompts/{split}.parquet")
    (folder / "rewards.py").write_text(
        "def grade(answer):\n    return sum(letter < 'n' for letter in answer) / max(1, len(answer))\n"
    )
