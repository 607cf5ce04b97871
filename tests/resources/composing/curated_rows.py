"""Curated rows for tests, written without ingest and curation: only what a test names differs from a plain row."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq

from resources.composing.datasets import build_sft_dataset
from resources.composing.seeds import import_seeds
from resources.curating.curation import NearDuplicates
from resources.curating.duplicates.near_duplicates import signatures

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
CURATED = pa.schema(
    [
        *(
            (name, pa.string())
            for name in (
                "interaction_id",
                "workload",
                "source",
                "session_id",
                "user_hash",
                "messages",
                "tools",
                "completion",
                "reasoning",
                "request",
                "prompt_shape",
                "content_sha256",
                "normalised_sha256",
                "text",
                "language",
            )
        ),
        ("dt", pa.date32()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("feedback", pa.float64()),
        ("prompt_characters", pa.int64()),
        ("completion_characters", pa.int64()),
        ("quality", pa.float64()),
        ("difficulty", pa.float64()),
        ("token_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("was_cut", pa.bool_()),
        ("signature", pa.list_(pa.int32())),
    ]
)


def row(number, prompt, answer, *, day=0, **changes):
    """One curated row. `prompt` is a user's text or a list of messages."""
    ts = START + timedelta(days=day, seconds=number if isinstance(number, int) else 0)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    found = dict.fromkeys(CURATED.names) | {
        "interaction_id": f"i{number}",
        "workload": "tutor",
        "source": "gateway",
        "session_id": f"s{number}",
        "messages": json.dumps(messages),
        "completion": json.dumps({"role": "assistant", "content": answer}),
        "prompt_shape": "none",
        "dt": ts.date(),
        "ts": ts,
        "was_cut": False,
        "signature": [],
        "content_sha256": hashlib.sha256(f"{messages}{answer}".encode()).hexdigest(),
        "language": "en",
        "new_turn": messages[-1]["content"],
        "answer": answer,
    }
    return found | changes


def curated(path, rows, near=None):
    """Writes curated.parquet with the signatures that cleaning gives."""
    near = near or NearDuplicates()
    signed = signatures(pa.array([each["new_turn"] for each in rows]), pa.array([each["answer"] for each in rows]), near)
    table = pa.Table.from_pylist([{name: each[name] for name in CURATED.names} for each in rows], schema=CURATED)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.set_column(table.schema.get_field_index("signature"), "signature", signed), path)
    return path


def seeds(path, lines, **settings):
    """Imports lines of JSON as the seed `handmade`; returns the Parquet file."""
    from resources.composing.dataset_settings import SeedSettings

    path.mkdir(parents=True, exist_ok=True)
    (path / "handmade.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_seeds({"handmade": SeedSettings(uri=str(path / "handmade.jsonl"), **settings)}, path / "seeds")
    return path / "seeds" / "seeds.parquet"


def example(question, answer, **more):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}


def built(curated_path, output, settings, seed_file=None, **more):
    """The report, and the rows of all splits."""
    report = build_sft_dataset(curated_path, seed_file, output, settings, **more)
    return report, [
        each for name in ("train", "validation", "test") for each in pq.read_table(output / f"{name}.parquet").to_pylist()
    ]
