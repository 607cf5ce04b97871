"""Rows a second through the per-row stage: from `interactions` to `cleaned_interactions` and its decisions.

    python -m benchmarks.clean                # 200,000 rows of about 1.5 kB, a few minutes
    python -m benchmarks.clean --quick        # 20,000 rows

The traffic is made up: sessions of one to four turns that repeat their history, a product's system prompt, prose, code,
lists and tool calls, 3 % of the rows with personal data, most of it in forms that only look like it (order numbers,
times, versions). Figures: rows and megabytes of JSON a second on the wall clock, seconds of processor time, peak memory,
and where the time goes.
"""

import argparse
import hashlib
import json
import random
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from benchmarks.record import record
from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables

WORKLOAD = "clean-bench"
START = datetime(2026, 6, 1, tzinfo=UTC)
SYSTEM = (
    "You are the support assistant of a web shop. Answer in the customer's language, shortly and kindly. "
    "Orders have numbers such as 20260601-4711; never promise a refund before the warehouse has answered."
)
COMMON = """
the of and to a in is that it was for on are as with they be at one have this from or had by but some what there we
can out other were all your when up use how said an each she which do their time if will way about many then them
would like so these her long make thing see him two has look more day could go come did my sound no most who over know
than call first people may down side been now find
"""
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "find_order",
                "description": "Looks an order up by its number.",
                "parameters": {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]},
            },
        }
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20,000 rows in place of 200,000; nothing is recorded")
    parser.add_argument("--rows", type=int, help="another number of rows")
    given = parser.parse_args()
    wanted = given.rows or (20_000 if given.quick else 200_000)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        tables = Tables(LakeLayout.open(Path(folder) / "lake"))
        rows, size = 0, 0
        for number, chunk in enumerate(traffic(wanted)):
            tables.append("interactions", chunk)
            rows += len(chunk)
            size += sum(chunk[name].nbytes for name in ("messages", "tools", "completion"))
            del chunk, number
        days = sorted(tables.rows_by_day("interactions", WORKLOAD))
        clean(tables, WORKLOAD, days[:1], CurationSettings())  # imports and compilation are not measured
        before, began = time.process_time(), time.monotonic()
        report = clean(tables, WORKLOAD, days, CurationSettings())
        seconds, processor = time.monotonic() - began, time.process_time() - before
    record(
        "clean",
        {
            "rows_per_s": round(rows / seconds),
            "mb_per_s": round(size / seconds / 1e6, 1),
            "rows": rows,
            "bytes_per_row": round(size / rows),
            "seconds": round(seconds, 2),
            "processor_seconds": round(processor, 2),
            "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "kept": report.rows,
            "dropped": report.dropped,
            "pii": report.pii,
        },
        keep=not (given.quick or given.rows),
    )


def traffic(wanted: int, days: int = 4):
    """Tables of `interactions`, at most 20,000 rows each, wanted rows in all over some days."""
    draw = random.Random(0)
    words = _vocabulary(draw)
    rows = []
    made = 0
    while made < wanted:
        session = f"s{made}"
        system = {"role": "system", "content": SYSTEM}
        messages = [system]
        for turn in range(draw.choice((1, 1, 2, 3, 4))):
            if made == wanted:
                break
            messages.append({"role": "user", "content": _question(draw, words)})
            answer = _answer(draw, words, made)
            rows.append(_row(made, session, messages, answer, draw, turn, made * days // wanted))
            messages = [*messages, answer]
            if answer.get("tool_calls"):
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": answer["tool_calls"][0]["id"],
                        "content": json.dumps({"state": "sent", "weight": draw.random()}),
                    }
                )
            made += 1
        if len(rows) >= 20_000:
            yield _table(rows)
            rows = []
    if rows:
        yield _table(rows)


def _vocabulary(draw: random.Random) -> list[str]:
    common = COMMON.split()
    rare = [
        "".join(draw.choice("bcdfghklmnprstvw") + draw.choice("aeiou") for _ in range(draw.randint(2, 4))) for _ in range(4000)
    ]
    return common * 30 + rare


def _question(draw: random.Random, words: list[str]) -> str:
    text = " ".join(draw.choices(words, k=draw.randint(8, 60)))
    kind = draw.random()
    if kind < 0.03:
        text += f" write to {draw.choice(words)}@{draw.choice(words)}.example.org or call +49 30 {draw.randint(100000, 999999)}"
    elif kind < 0.3:
        text += f" order {draw.randint(10**9, 10**12)} of 2026-05-{draw.randint(10, 28)} 12:{draw.randint(10, 59)}:00"
    elif kind < 0.4:
        text += f" with version {draw.randint(1, 9)}.{draw.randint(1, 20)}.{draw.randint(1, 9)} costs {draw.randint(1, 900)}.50"
    return text[:1].upper() + text[1:] + "?"


def _answer(draw: random.Random, words: list[str], number: int) -> dict:
    kind = draw.random()
    if kind < 0.1:
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "find_order", "arguments": json.dumps({"number": str(draw.randint(10**7, 10**8))})},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind < 0.25:
        lines = [
            f'    {draw.choice(words)}_{n} = {draw.choice(words)}({draw.randint(0, 99)}, "{draw.choice(words)}")'
            for n in range(draw.randint(4, 12))
        ]
        return {"role": "assistant", "content": "Here it is:\n\n```python\ndef work():\n" + "\n".join(lines) + "\n```\n"}
    if kind < 0.4:
        points = [f"{n}. **{draw.choice(words)}**: {' '.join(draw.choices(words, k=12))}" for n in range(1, draw.randint(4, 9))]
        return {"role": "assistant", "content": "\n".join(points)}
    parts = [" ".join(draw.choices(words, k=draw.randint(15, 45))).capitalize() + "." for _ in range(draw.randint(1, 4))]
    return {"role": "assistant", "content": "\n\n".join(parts)}


def _row(number, session, messages, answer, draw, turn, day) -> dict:
    ts = START + timedelta(days=day, seconds=number % 86_000, minutes=turn)
    text, completion = json.dumps(messages, ensure_ascii=False), json.dumps(answer, ensure_ascii=False)
    row = dict.fromkeys(SCHEMAS["interactions"].names)
    digest = hashlib.sha256(f"{number}{text}{completion}".encode()).hexdigest()
    return row | {
        "workload": WORKLOAD,
        "dt": (START + timedelta(days=day)).date(),
        "ts": ts,
        "interaction_id": digest,
        "content_sha256": digest,
        "request_id": f"chatcmpl-{number}",
        "choice_index": 0,
        "source": "gateway",
        "source_format": "openai_pairs",
        "source_uri": "log.jsonl",
        "source_row": number,
        "session_id": session,
        "client": "shop",
        "model": "m",
        "messages": text,
        "completion": completion,
        "tools": TOOLS if number % 4 == 0 else None,
        "finish_reason": "length" if draw.random() < 0.02 else "stop",
        "cache_hit": False,
        "status": "success",
    }


def _table(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMAS["interactions"])


if __name__ == "__main__":
    main()
