"""The house model's material for drafters: answers of its own to train on, and held-out prompts of its three workloads.

    material = prepare(folder, shared)
    material.target, material.answers                     # what operation `speculator` takes
    material.prompts["math"]                              # Prompts that neither target nor any drafter has seen

Training: ../shared/data/house_onpolicy.jsonl, prompts with the model's own answers at temperature 1. Held out: GSM8K's test
questions; airline conversations of the tasks that were kept out (id modulo 5 is 4), cut before each of the agent's first
answers; HumanEval's problems, asked as the model was trained to be asked. Rendered by the model's own chat template, long
system and tool messages cut as in its training.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.decoding.prompts import Prompt, render_prompt
from model_ops.models.model_directory import load_tokenizer
from model_ops.training.conversations import Row

VALIDATION_EVERY = 20
LONGEST_PROMPT = 1_536
AIRLINE_TURNS = 4
LONGEST_MESSAGE = 600
"""Characters of a system or tool message."""


@dataclass(frozen=True)
class HouseMaterial:
    target: Path
    answers: Path
    prompts: dict[str, list[Prompt]]


def prepare(folder: Path, shared: Path, rows: int | None = None, workload: str | None = None) -> HouseMaterial:
    """rows, workload: train on so many rows, or on one workload's alone. Raises SystemExit where the data is not there."""
    target = shared / "models" / "house"
    if not (target / "config.json").exists() or not (shared / "data" / "house_onpolicy.jsonl").exists():
        raise SystemExit(f"{shared} lacks models/house or data/house_onpolicy.jsonl: give the folder that has them, --shared")
    return HouseMaterial(target, _answers(folder / "answers", shared, rows, workload), held_out(shared))


def held_out(shared: Path) -> dict[str, list[Prompt]]:
    """Prompts by workload, in a seeded order."""
    tokenizer = load_tokenizer(shared / "models" / "house")
    chats = {"math": _math(shared), "airline": _airline(shared), "code": _code(shared)}
    prompts = {}
    for workload, conversations in chats.items():
        found = []
        for row_id, messages in conversations:
            roles = [message["role"] for message in messages]
            ids = render_prompt(tokenizer, Row(row_id, messages))
            if len(ids) <= LONGEST_PROMPT:
                found.append(Prompt(row_id, row_id, workload, ids, workload, roles.count("user"), "system" in roles))
        random.Random(0).shuffle(found)
        prompts[workload] = found
    return prompts


def mixed(prompts: dict[str, list[Prompt]], count: int) -> list[Prompt]:
    """`count` prompts, the workloads by turns as long as each has any."""
    chosen: list[Prompt] = []
    queues = {name: list(found) for name, found in prompts.items()}
    while len(chosen) < count and any(queues.values()):
        for queue in queues.values():
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
    return chosen


def _answers(folder: Path, shared: Path, rows: int | None, workload: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    said = [json.loads(line) for line in (shared / "data" / "house_onpolicy.jsonl").read_text().splitlines()]
    said = [row for row in said if workload in (None, row["workload"])]
    random.Random(1).shuffle(said)
    records = [{"row_id": f"house-{place}", "session_id": f"house-{place}", "prompt_shape": row["workload"],
                "prompt_token_ids": row["prompt"], "answer_token_ids": row["answer"],
                "finish_reason": "stop" if row["answer"][-1:] == [2] else "length", "temperature": 1.0}
               for place, row in enumerate(said[:rows])]
    _write([row for place, row in enumerate(records) if place % VALIDATION_EVERY], folder / "train.parquet")
    _write([row for place, row in enumerate(records) if place % VALIDATION_EVERY == 0], folder / "validation.parquet")
    return folder


def _write(records: Sequence[dict[str, Any]], path: Path) -> None:
    schema = pa.schema([("row_id", pa.string()), ("session_id", pa.string()), ("prompt_shape", pa.string()),
                        ("prompt_token_ids", pa.list_(pa.int32())), ("answer_token_ids", pa.list_(pa.int32())),
                        ("finish_reason", pa.string()), ("temperature", pa.float64())])
    pq.write_table(pa.Table.from_pylist(list(records), schema=schema), path)


def _math(shared: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    lines = (shared / "data" / "gsm8k_test.jsonl").read_text().splitlines()
    return [(f"gsm8k-{place}", [{"role": "user", "content": json.loads(line)["question"]}])
            for place, line in enumerate(lines)]


def _airline(shared: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    prompts = []
    for place, chat in enumerate(json.loads((shared / "data" / "tau_airline.json").read_text())):
        if int(chat["task_id"]) % 5 != 4:
            continue
        messages = [message if message["role"] in ("user", "assistant")
                    else {**message, "content": (message["content"] or "")[:LONGEST_MESSAGE]} for message in chat["traj"]]
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant" and message.get("content")]
        prompts += [(f"airline-{place}-{at}", messages[:at]) for at in answers[:AIRLINE_TURNS]]
    return prompts


def _code(shared: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    with gzip.open(shared / "data" / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    prompts = []
    for row in rows:
        function = next(node for node in ast.parse(row["prompt"]).body
                        if isinstance(node, ast.FunctionDef) and node.name == row["entry_point"])
        purpose = " ".join((ast.get_docstring(function) or "").split(">>>")[0].split("\n\n")[0].split())
        asked = f"Write the Python function `{function.name}` of module `human_eval`.\n{purpose}"
        prompts.append((row["task_id"].replace("/", "-"), [{"role": "user", "content": asked}]))
    return prompts
