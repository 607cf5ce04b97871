"""A first day with own logs, as a script: how long, how many commands, what is lost, what an error costs.

    python -m benchmarks.first_day --quick             # inspect, init, check and the errors; nothing is trained or recorded
    python -m benchmarks.first_day                     # to an approved release on two kinds of logs: about 20 minutes
    python -m benchmarks.first_day --install           # and the clone with its environment before

Two products log 300 chats of a support bot each, in their own keys: one wraps OpenAI's request and response, one Anthropic's,
with camel case in a nested object. Figures by product: minutes to the first useful look (`inspect`) and to an approved release,
commands until then, and keys lost: of what each record says of user, session, time, latency, cost and thumb, the columns that
have fewer values in the lake than the records gave, without a word of `inspect` about the key. An error is slow if it takes
0.3 s longer than a success of the same command, by the fastest of five tries each.
"""

import argparse
import csv
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.record import record
from resources.launching.processes import child_environment

CHATS, DAYS = 300, 3
THINGS = ("order", "invoice", "refund", "parcel", "password", "address", "subscription", "voucher", "warranty", "appointment")
TROUBLES = ("is late", "was charged twice", "is missing", "cannot be changed", "expired yesterday", "went to a neighbour")
ANSWERS = (
    "I am sorry to hear that. Please open your account, choose {thing} {number} and press report: we answer within a day.",
    "Thank you for asking. The {thing} {number} was checked by a colleague today; it will be put right by {day}.",
    "That happens where the {thing} was entered by hand. Send us number {number} with the date, and we correct it.",
)
KEYS = {
    "openai": {
        "user_hash": "user",
        "session_id": "conversation_id",
        "ts": "time",
        "latency_ms": "duration_ms",
        "cost": "cost_usd",
        "feedback": "thumb",
    },
    "anthropic": {
        "user_hash": "userId",
        "session_id": "chatId",
        "ts": "createdAt",
        "latency_ms": "latencyMs",
        "cost": "costUsd",
        "feedback": "userRating",
    },
}
"""Column of the lake -> the product's own key."""
ERRORS = (
    (("sql", "select 1"), ("sql", "select nope")),
    (("releases",), ("approve", "zzzzzz", "--yes")),
    (("why", "chatcmpl-00000a7"), ("why", "no-such-request")),
    (("status",), ("status", "no-such.yaml")),
    (("releases",), ("rollback", "no-such", "--yes")),
    (("releases",), ("diff", "no/such")),
)
"""(a success, an error) of one command, or of one that reads as much."""
TRIES = 5


def chats(kind: str) -> Iterator[dict[str, Any]]:
    """The records of one product; a thumb on one chat in five."""
    random, began = Random(kind), datetime(2026, 6, 1, 8, tzinfo=UTC)
    for number in range(CHATS):
        thing, trouble = random.choice(THINGS), random.choice(TROUBLES)
        asked = f"{random.choice(('Hi', 'Hello', 'Good morning'))}, my {thing} {number} {trouble}. What can I do?"
        answer = random.choice(ANSWERS).format(thing=thing, number=number, day=random.choice(("Monday", "Friday", "Sunday")))
        at = began + timedelta(minutes=number * DAYS * 24 * 60 // CHATS)
        own = {
            "user_hash": f"U{number % 40}",
            "session_id": f"c-{number // 2}",
            "ts": at.isoformat(),
            "latency_ms": random.randint(300, 4_000),
            "cost": round(random.uniform(1e-4, 1e-2), 6),
        }
        if number % 5 == 0:
            own["feedback"] = random.choice(("up", "up", "down"))
        named = {KEYS[kind][column]: value for column, value in own.items()}
        system = "You are the support assistant of a shop. Answer in two sentences."
        if kind == "openai":
            yield named | {
                "request": {
                    "model": "gpt-4o-mini",
                    "messages": [{"role": "system", "content": system}, {"role": "user", "content": asked}],
                },
                "response": {
                    "id": f"chatcmpl-{number:05x}a7",
                    "model": "gpt-4o-mini",
                    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}],
                },
            }
        else:
            yield {
                "meta": named,
                "request": {
                    "model": "claude-sonnet-4-5",
                    "max_tokens": 400,
                    "system": system,
                    "messages": [{"role": "user", "content": asked}],
                },
                "response": {
                    "id": f"msg_{number:05x}b3",
                    "type": "message",
                    "role": "assistant",
                    "model": "claude-sonnet-4-5",
                    "stop_reason": "end_turn",
                    "content": [{"type": "text", "text": answer}],
                },
            }


def write_logs(kind: str, folder: Path) -> None:
    """A file for each day."""
    records = list(chats(kind))
    for day in range(DAYS):
        path = folder / f"2026-06-0{day + 1}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in records[day * CHATS // DAYS : (day + 1) * CHATS // DAYS]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="no training; nothing is recorded")
    parser.add_argument("--install", action="store_true", help="clone the checkout and install it first")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        before_s = _install(Path(folder)) if given.install else 0.0
        found: dict[str, Any] = {kind: _day(kind, Path(folder) / kind, before_s, given.quick) for kind in KEYS}
        slow = _slow_errors(Path(folder) / "openai")
    record(
        "first_day",
        found | {"install_minutes": round(before_s / 60, 1) if given.install else None, "slow_errors": slow},
        keep=not given.quick,
    )


def _install(folder: Path) -> float:
    began_s = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", ".", str(folder / "clone")], check=True)
    subprocess.run(["make", "-C", str(folder / "clone"), ".venv/installed"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began_s


def _day(kind: str, folder: Path, before_s: float, quick: bool) -> dict[str, Any]:
    """One product's way to a release."""
    write_logs(kind, folder / "logs")
    commands = [
        ["inspect", "logs"],
        ["init", "logs", "--workload", "support"],
        ["check", "support.yaml"],
        ["run", "support.yaml"],
    ]
    seconds, look = before_s, ""
    figures: dict[str, Any] = {}
    for words in commands[: 3 if quick else 4]:
        took, output = _millrace(folder, words)
        seconds, look = seconds + took, look or output
        figures.setdefault("minutes_to_first_look", round(seconds / 60, 2))
    if quick:
        commands = [*commands[:3], ["run", "support.yaml", "--select", "interactions"]]
        _millrace(folder, commands[3])
    else:
        version = _rows(folder, "select version from releases")[-1]["version"]
        commands.append(["approve", version, "--reason", "read the answers", "--yes"])
        seconds += _millrace(folder, commands[4])[0]
        figures |= {"minutes_to_release": round(seconds / 60, 1), "commands": len(commands)}
    return figures | {"keys_lost": _lost(kind, folder, look)}


def _lost(kind: str, folder: Path, look: str) -> list[str]:
    """Keys whose values did not all reach the lake and that `inspect` does not name."""
    [counts] = _rows(
        folder,
        "select count(user_hash) as user_hash, count(session_id) as session_id, count(distinct ts) as ts, "
        "count(latency_ms) as latency_ms, count(cost) as cost, "
        "(select count(*) from feedback) as feedback from interactions",
    )
    planted = {
        column: sum(key in str(each) for each in map(json.dumps, chats(kind)))
        for column, key in ((column, f'"{key}"') for column, key in KEYS[kind].items())
    }
    return [
        KEYS[kind][column]
        for column, wanted in planted.items()
        if int(counts[column]) < wanted and KEYS[kind][column] not in look
    ]


def _slow_errors(folder: Path) -> list[str]:
    slow = []
    for success, error in ERRORS:
        least = [
            min(_millrace(folder, list(words), codes)[0] for _ in range(TRIES))
            for words, codes in ((success, (0,)), (error, (1, 2)))
        ]
        if least[1] > least[0] + 0.3:
            slow.append(f"{' '.join(error)}: {least[1]:.1f} s, {' '.join(success)}: {least[0]:.1f} s")
    return slow


def _rows(folder: Path, query: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(_millrace(folder, ["sql", query, "--format", "csv"])[1])))


def _millrace(folder: Path, words: list[str], codes: tuple[int, ...] = (0,)) -> tuple[float, str]:
    """(seconds, output) of a command in the product's folder; ends if its exit code is none of `codes`."""
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pipelines.cli", *words],
        cwd=folder,
        text=True,
        capture_output=True,
        env=child_environment(MILLRACE_LAKE="lake", MILLRACE_USER="ana"),
        stdin=subprocess.DEVNULL,
    )
    if done.returncode not in codes:
        sys.exit(f"millrace {' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return time.monotonic() - began_s, done.stdout


if __name__ == "__main__":
    main()
