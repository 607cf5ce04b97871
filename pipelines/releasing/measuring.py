"""`millrace measure`: measures a server's speed, latency and acceptance on held-out prompts, against a second server that gets
the same prompts in the same order. The first answer is printed too: a server with wrong answers may be fast."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model_ops.completions import MissingKeyError, ServedMeasure, ServedModel, key_in, measure_served
from model_ops.jobs import Misuse, ModelError

SHOWN_CHARACTERS = 300
MOST_AT_A_TIME = 256


class MeasureError(Misuse):
    """The measurement cannot be made."""


@dataclass(frozen=True)
class ServedPrompt:
    """The messages before a conversation's last answer."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


@dataclass(frozen=True)
class Level:
    """One server at one concurrency."""

    server: str
    model: str
    concurrency: int
    measured: ServedMeasure


def read_prompts(source: Path, count: int, seed: int = 0) -> list[ServedPrompt]:
    """At most `count` prompts of a dataset's test.parquet or of a JSONL file; raises MeasureError if there is none."""
    path = source / "test.parquet" if source.is_dir() else source
    try:
        if source.is_dir():
            names = set(pq.read_schema(path).names) & {"messages", "tools"}
            rows = pq.read_table(path, columns=sorted(names)).to_pylist()
        else:
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise MeasureError(f"{path} cannot be read: give a dataset with a test.parquet, or a JSONL file") from error
    prompts = []
    for place, row in enumerate(rows):
        try:
            messages, tools = (
                json.loads(value) if isinstance(value, str) else value for value in (row["messages"], row.get("tools"))
            )
            last = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=len(messages))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MeasureError(f"{path}: row {place} has no messages in OpenAI's form") from error
        if last > 0:
            prompts.append(ServedPrompt(messages[:last], tools or None))
    if not prompts:
        raise MeasureError(f"{path} holds no prompt: no row has a message before an answer")
    return random.Random(seed).sample(prompts, count) if count < len(prompts) else prompts


def read_concurrency(text: str) -> list[int]:
    """`1,8` as numbers; raises MeasureError for anything else."""
    try:
        levels = [int(word) for word in text.split(",")]
    except ValueError:
        levels = [0]
    if not all(1 <= level <= MOST_AT_A_TIME for level in levels):
        raise MeasureError(f"--concurrency {text}: give one or more numbers from 1 to {MOST_AT_A_TIME}, such as 1,8")
    return levels


def measure_servers(
    servers: Sequence[str],
    prompts: Sequence[ServedPrompt],
    levels: Sequence[int],
    max_tokens: int,
    temperature: float,
    model: str | None = None,
    api_key_env: str | None = None,
) -> list[Level]:
    """Every server at every concurrency. Raises MeasureError for a missing API key, ModelError if a server fails."""
    try:
        key = key_in(api_key_env)
    except MissingKeyError as error:
        raise MeasureError(str(error)) from error
    speeds = []
    for url in servers:
        with ServedModel(url, model, key) as server:
            for concurrency in levels:
                measured = measure_served(
                    server,
                    [prompt.messages for prompt in prompts],
                    tools=[prompt.tools for prompt in prompts],
                    concurrency=concurrency,
                    max_tokens=max_tokens,
                    temperature=temperature,
                )
                if not measured.tokens:
                    raise ModelError(f"{url} answered every prompt with no token at all")
                speeds.append(Level(url, server.model, concurrency, measured))
    return speeds


def as_rows(speeds: Sequence[Level]) -> list[dict[str, Any]]:
    """One row per server and concurrency. speed_ratio: the first server's tokens/s over the second's."""
    rows = []
    for level in speeds:
        measured, acceptance = level.measured, level.measured.acceptance
        other = next(
            (one.measured for one in speeds if one.server != level.server and one.concurrency == level.concurrency), None
        )
        rows.append(
            {
                "server": level.server,
                "model": level.model,
                "concurrency": level.concurrency,
                "requests": len(measured.replies),
                "tokens": measured.tokens,
                "tokens_per_second": measured.tokens_per_second,
                "latency_s": measured.latency_s,
                "tau": acceptance.tau if acceptance else None,
                "accepted_by_position": [count / max(1, acceptance.drafts) for count in acceptance.accepted_at]
                if acceptance
                else None,
                "speed_ratio": measured.tokens_per_second / other.tokens_per_second
                if other and level.server == speeds[0].server
                else None,
                "first_answer": measured.replies[0].text,
            }
        )
    return rows


def speeds_as_json(speeds: Sequence[Level]) -> str:
    return json.dumps(as_rows(speeds), indent=2)


def print_speeds(speeds: Sequence[Level], console: Console) -> None:
    """Prints the table, and each server's first answer."""
    table = Table(box=None, header_style="bold")
    for name in ("server", "at a time", "requests", "tokens/s", "p50 s", "p90 s", "p99 s", "tau", "speed ratio"):
        table.add_column(name, justify="left" if name == "server" else "right")
    rows = as_rows(speeds)
    for row in rows:
        table.add_row(
            escape(row["server"]),
            str(row["concurrency"]),
            str(row["requests"]),
            f"{row['tokens_per_second']:,.1f}",
            *(f"{row['latency_s'][name]:.3f}" for name in ("p50", "p90", "p99")),
            f"{row['tau']:.2f}" if row["tau"] is not None else "no drafts counted",
            f"{row['speed_ratio']:.2f}" if row["speed_ratio"] is not None else "",
        )
    console.print(table)
    for server in dict.fromkeys(row["server"] for row in rows):
        said = next(row["first_answer"] for row in rows if row["server"] == server)
        console.print(f"\n{server} says first: {said[:SHOWN_CHARACTERS]!r}", markup=False, highlight=False, soft_wrap=True)
