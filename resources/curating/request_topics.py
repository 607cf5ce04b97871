"""What a workload's people ask for: words that many requests share, chosen once from the lake's traffic and kept.

    topics = kept_topics(lake, "math-tutor")      # None: not chosen yet
    topics = choose_topics(connection)            # from the tables asked_words, texts and conversations

Prompt shapes are named by them. They are chosen when LEAST_PEOPLE have asked, and stay from then on, so that a shape means the
same on every day; before that, a request goes by its first word that is no greeting. To have them chosen anew, delete
<lake>/prompt_shapes/<workload>.json: the next run then cleans all days again. Each word was said by LEAST_OF_A_WORD people or
more; where users are not known, in as many sessions.
"""

from __future__ import annotations

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


def kept_topics(lake: LakeLayout, workload: str) -> pa.Table | None:
    """The workload's topics; None before they are chosen, or where their file cannot be read."""
    path = _path(lake, workload)
    lake.mirror.pull_file(path)
    try:
        return pa.Table.from_pylist(json.loads(path.read_text(encoding="utf-8"))["topics"], schema=TOPICS)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def choose_topics(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """From the words that were asked for; none where too few people asked."""
    found = rows(connection, "curating/shapes/topics", least=LEAST_OF_A_WORD, most=MOST_TOPICS, enough=LEAST_PEOPLE)
    return found.select(TOPICS.names).cast(TOPICS)


def keep_topics(lake: LakeLayout, workload: str, topics: pa.Table) -> pa.Table:
    """Keeps the topics, and returns those that are kept: of two machines, those of the first one stay."""
    path = _path(lake, workload)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"topics": topics.to_pylist()})
    try:
        lake.mirror.publish(path)
    except Conflict:
        path.unlink(missing_ok=True)
        return kept_topics(lake, workload) or topics
    return topics


def digest_of(topics: pa.Table | None) -> str:
    """Digest of what decides a request's topic; "" before there are any."""
    return hashlib.sha256(json.dumps(topics.to_pylist()).encode()).hexdigest() if topics is not None else ""


def attach_topics(connection: duckdb.DuckDBPyConnection, topics: pa.Table | None) -> None:
    """The table `row_topics`, from `asked_words`."""
    connection.register("topics", TOPICS.empty_table() if topics is None else topics)
    run(connection, "curating/shapes/row_topics")


def _path(lake: LakeLayout, workload: str) -> Path:
    return lake.root / FOLDER / f"{workload}.json"
