"""Words that many requests of a workload share, which name prompt shapes. They are chosen once, when LEAST_PEOPLE have asked,
and stay, so that a shape means the same on every day. To have them chosen anew, delete <lake>/prompt_shapes/<workload>.json:
the next run then cleans all days again."""

import hashlib
import json
from pathlib import Path

import duckdb
import pyarrow as pa

from model_ops.files import write_json
from resources.lake import LakeLayout, rows, run
from stores.mirror.bucket import Conflict

FOLDER = "prompt_shapes"
LEAST_PEOPLE = 200
LEAST_OF_A_WORD = 5
MOST_TOPICS = 40
TOPICS = pa.schema([("word", pa.string()), ("name", pa.string()), ("rank", pa.int64())])


def stored_topics(lake: LakeLayout, workload: str) -> pa.Table | None:
    """The workload's topics; None before they are chosen, or where their file cannot be read."""
    path = _path(lake, workload)
    lake.mirror.pull_file(path)
    try:
        return pa.Table.from_pylist(json.loads(path.read_text(encoding="utf-8"))["topics"], schema=TOPICS)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def choose_topics(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """From the words that were asked for; none where too few people asked."""
    topics = rows(connection, "curating/shapes/topics", least=LEAST_OF_A_WORD, most=MOST_TOPICS, enough=LEAST_PEOPLE)
    return topics.select(TOPICS.names).cast(TOPICS)


def keep_topics(lake: LakeLayout, workload: str, topics: pa.Table) -> pa.Table:
    """Keeps the topics, and returns those that are kept: of two machines, those of the first one stay."""
    path = _path(lake, workload)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"topics": topics.to_pylist()})
    try:
        lake.mirror.publish(path)
    except Conflict:
        path.unlink(missing_ok=True)
        return stored_topics(lake, workload) or topics
    return topics


def digest_of(topics: pa.Table | None) -> str:
    return hashlib.sha256(json.dumps(topics.to_pylist()).encode()).hexdigest() if topics is not None else ""


def attach_topics(connection: duckdb.DuckDBPyConnection, topics: pa.Table | None) -> None:
    """The table `row_topics`, from `asked_words`."""
    connection.register("topics", TOPICS.empty_table() if topics is None else topics)
    run(connection, "curating/shapes/row_topics")


def _path(lake: LakeLayout, workload: str) -> Path:
    return lake.root / FOLDER / f"{workload}.json"
