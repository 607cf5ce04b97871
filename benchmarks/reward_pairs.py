"""Pairs of answers for the benchmark of reward models, from ../shared/data, as preference datasets.

    write_pairs(ranked_pairs(shared), folder, seed=0)         # train.parquet, validation.parquet, test.parquet, by session

- oasst: of each prompt in a tree, the answer that people ranked first against each other one. margin: the distance of the
  ranks, as a share of the largest one at that prompt. A session is a tree.
- airline: what an agent did where it mattered. Of runs of one task that succeeded, the last call that changes something or
  hands the customer over is chosen; of a run of the same task that failed, its last such call is rejected. The prompt is the
  airline's policy and the last messages before the call. A session is a task. A prompt that occurs in two tasks
  counts for the first of them. The label is the outcome of the whole run, so it is noisy.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TEST, VALIDATION = 0.3, 0.1
MESSAGES = 6
"""Messages before the call that an airline's prompt keeps."""
LOOKS_ONLY = ("get_", "search_", "list_", "calculate", "think")
"""Beginnings of the names of functions that change nothing."""
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("row_id", "session_id", "prompt", "tools", "chosen", "rejected", "reason")]
    + [(name, pa.float64()) for name in ("weight", "margin")]
)


def write_pairs(rows: list[dict[str, Any]], folder: Path, seed: int) -> dict[str, int]:
    """The rows in three files by session, at random by the seed; returns their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for row in rows:
        place = int(hashlib.sha256(f"{seed}:{row['session_id']}".encode()).hexdigest()[:8], 16) / 2**32
        parts["test" if place < TEST else "validation" if place < TEST + VALIDATION else "train"].append(row)
    for split, members in parts.items():
        pq.write_table(pa.Table.from_pylist(members, schema=SCHEMA), folder / f"{split}.parquet")
    return {split: len(members) for split, members in parts.items()}


def ranked_pairs(shared: Path) -> list[dict[str, Any]]:
    """Pairs of oasst."""
    lines = (shared / "data/oasst_en_100_tree.jsonl").read_text().splitlines()
    return [
        pair for line in lines for tree in [json.loads(line)] for pair in _below(tree["prompt"], [], tree["message_tree_id"])
    ]


def _below(node: dict[str, Any], before: list[dict[str, Any]], tree: str) -> Iterator[dict[str, Any]]:
    said = [*before, {"role": "user" if node["role"] == "prompter" else "assistant", "content": node["text"]}]
    ranked = sorted((reply for reply in node["replies"] if reply.get("rank") is not None), key=lambda reply: reply["rank"])
    if node["role"] == "prompter":
        for worse in ranked[1:]:
            margin = (worse["rank"] - ranked[0]["rank"]) / (ranked[-1]["rank"] - ranked[0]["rank"])
            answers = ({"role": "assistant", "content": each["text"]} for each in (ranked[0], worse))
            yield _pair(worse["message_id"], tree, said, *answers, "ranked", margin)
    for reply in node["replies"]:
        yield from _below(reply, said, tree)


def outcome_pairs(shared: Path) -> list[dict[str, Any]]:
    """Pairs of the airline's tasks."""
    runs = defaultdict(list)
    for run in json.loads((shared / "data/tau_airline.json").read_text()):
        calls = [place for place, said in enumerate(run["traj"]) if _changes_something(said)]
        if calls:
            runs[run["task_id"]].append((run["reward"], run["traj"][: calls[-1]], run["traj"][calls[-1]], run["trial"]))
    pairs = [
        _pair(f"{task}-{trial}-{other}", f"task-{task}", [*before[:1], *_end_of(before)], chosen, rejected, "outcome", None)
        for task, of_task in runs.items()
        for reward, before, chosen, trial in of_task
        for worse, _, rejected, other in of_task
        if reward > worse and chosen["tool_calls"][0]["function"] != rejected["tool_calls"][0]["function"]
    ]
    first: dict[str, str] = {}
    return [pair for pair in pairs if first.setdefault(pair["prompt"], pair["session_id"]) == pair["session_id"]]


def _changes_something(said: dict[str, Any]) -> bool:
    return any(not call["function"]["name"].startswith(LOOKS_ONLY) for call in said.get("tool_calls") or [])


def _end_of(before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last messages, from one of the user's on."""
    last = before[1:][-MESSAGES:]
    first = next((place for place, said in enumerate(last) if said["role"] == "user"), len(last))
    return last[first:]


def _pair(
    row_id: str,
    session: str,
    prompt: list[dict[str, Any]],
    chosen: dict[str, Any],
    rejected: dict[str, Any],
    reason: str,
    margin: float | None,
) -> dict[str, Any]:
    sides = {"chosen": json.dumps([chosen]), "rejected": json.dumps([rejected])}
    told = {"tools": None, "reason": reason, "weight": 1.0, "margin": margin}
    return {"row_id": row_id, "session_id": session, "prompt": json.dumps(prompt), **sides, **told}
