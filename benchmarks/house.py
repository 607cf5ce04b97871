"""The house model's material for drafters: its own answers to train on, their hidden states, and held-out prompts.

    house = House(shared, folder)
    house.target, house.answers()                         # what operation `speculator` takes; answers("math") of one workload
    house.prompts["math"]                                 # Prompts that neither target nor any drafter has seen
    rows = house.rows("math", "code")                     # training answers as AnswerRow
    model, result = house.trained(rows, settings, work)   # a drafter; its target's states are computed once, in the folder
    house.measured({"eagle3": model.drafter()}, house.prompts["math"], temperature=1.0)     # a row a prompt, K = 5

Training: ../shared/data/house_onpolicy.jsonl, prompts with the model's own answers at temperature 1. Held out: GSM8K's test
questions; airline conversations of the tasks that were kept out (id modulo 5 is 4), cut before each of the agent's first
answers; HumanEval's problems, asked as the model was trained to be asked. Rendered by the model's own chat template, long
system and tool messages cut as in its training. Everything in the folder is named by what determines it: benchmarks that
name the same folder share it.
"""

import ast
import gzip
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from model_ops.decoding.drafters import Drafter
from model_ops.decoding.incremental import IncrementalModel
from model_ops.decoding.prompts import Prompt, render_prompt
from model_ops.drafting.acceptance import AcceptanceRow
from model_ops.drafting.measure_acceptance import measure
from model_ops.files.digests import target_digest
from model_ops.jobs import Progress
from model_ops.machine.precision import products_dtype
from model_ops.models.model_directory import end_of_text_ids, load_model, load_tokenizer
from model_ops.rendering.row import Row
from model_ops.speculators.continue_training import begin_between
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.losses.chain_loss import Teacher
from model_ops.speculators.losses.training_loss import SpeculatorLoss, measure_alpha
from model_ops.speculators.operation import VALIDATION_ROWS, new_drafter
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.states.hidden_states import AnswerRow, HiddenStates, read_answers
from model_ops.speculators.states.speculator_batches import SpeculatorPlan
from model_ops.training.settings import plan_validation
from model_ops.training.trainer import TrainingResult, train

WORKLOADS = ("math", "airline", "code")
VALIDATION_EVERY = 20
LONGEST_PROMPT = 1_536
AIRLINE_TURNS = 4
LONGEST_MESSAGE = 600
"""Characters of a system or tool message."""


K = 5
MAX_NEW_TOKENS = 128
MAX_LENGTH = 2_048
OPTIMIZER = {"optimizer": "muon", "learning_rate": 2e-2, "adamw_rate_share": 1.0}
"""Best of AdamW (1e-3 to 3e-2) and Muon (3e-3 to 4e-2) for EAGLE-3, or within 0.01 of it, by the
expected acceptance length on validation answers after 120 steps with KL (benchmarks/LOG.md)."""


@dataclass(frozen=True)
class House:
    """shared: the folder that holds models/house and data. folder: where answers and states are kept.

    Raises SystemExit where the model or its data is not there.
    """

    shared: Path
    folder: Path

    def __post_init__(self) -> None:
        if not (self.target / "config.json").exists() or not (self.shared / "data" / "house_onpolicy.jsonl").exists():
            raise SystemExit(
                f"{self.shared} lacks models/house or data/house_onpolicy.jsonl: give the folder that has them with --shared"
            )

    @property
    def target(self) -> Path:
        return self.shared / "models" / "house"

    @cached_property
    def runner(self) -> IncrementalModel:
        """The target as servers run it, in bfloat16 where products are faster with it."""
        return IncrementalModel(load_model(self.target, dtype=products_dtype("auto", torch.device("cpu")), attention="sdpa"))

    @cached_property
    def prompts(self) -> dict[str, list[Prompt]]:
        """Held-out prompts by workload, in a seeded order."""
        return held_out(self.shared)

    def answers(self, workload: str | None = None, rows: int | None = None) -> Path:
        """A folder as `generate` writes it, of all answers, of one workload's, or of the first so many of a seeded order."""
        folder = self.folder / f"answers-{workload or 'all'}-{rows or 'all'}"
        if not (folder / "validation.parquet").exists():
            _answers(folder, self.shared, rows, workload)
        return folder

    def rows(self, *workloads: str, share: int = 1) -> list[AnswerRow]:
        """Training answers of these workloads (of all where none is named), one after the other; of each every `share`th."""
        found = [read_answers(self.answers(workload) / "train.parquet", MAX_LENGTH)[0] for workload in workloads or WORKLOADS]
        return [row for rows in found for row in rows[::share]]

    def held_out_rows(self, count: int) -> list[AnswerRow]:
        """The first answers of those that no drafter is trained on."""
        return read_answers(self.answers() / "validation.parquet", MAX_LENGTH)[0][:count]

    def states(self, rows: Sequence[AnswerRow], layer_ids: Sequence[int]) -> HiddenStates:
        """The target's hidden states over these rows, computed once."""
        states = HiddenStates(self.folder / "states", rows, layer_ids, target_digest(self.target))
        states.compute(self.runner, Progress())
        return states

    def trained(
        self,
        rows: list[AnswerRow],
        settings: SpeculatorSettings,
        work: Path,
        previous: DraftModel | None = None,
        held_out: Sequence[AnswerRow] = (),
    ) -> tuple[DraftModel, TrainingResult]:
        """A drafter trained on these rows by resolved settings, in the target's dtype, as it would be served; with `previous`
        it goes on from that one, as operation `speculator` does. held_out: rows to measure it on, so that it may end early."""
        model, _ = new_drafter(self.target, self.runner, rows, [], settings)
        states, teacher = self.states(rows, model.capture), Teacher(self.runner.head.weight, model.target_ids)
        if previous is not None:
            some = rows[:VALIDATION_ROWS]
            begin_between(
                model,
                previous,
                settings.previous_share,
                lambda: measure_alpha(model, teacher, some, states, K)["validation_expected_tau"],
            )
        plan, loss = SpeculatorPlan(rows, states, settings), SpeculatorLoss(teacher, settings)
        checked = {}
        if held_out:
            some, seen = list(held_out), self.states(held_out, model.capture)
            checked = {
                "validate": lambda: measure_alpha(model, teacher, some, seen, settings.num_speculative_tokens),
                "validate_every": plan_validation(len(plan), settings).every,
            }
        result = train(model, plan, loss, settings, work, Progress(), "speculator", **checked)
        shutil.rmtree(work, ignore_errors=True)
        return model.ready_to_draft(self.runner.dtype), result

    def measured(
        self,
        drafters: dict[str, Drafter],
        prompts: Sequence[Prompt],
        temperature: float,
        num_speculative_tokens: int = K,
        max_new_tokens: int = MAX_NEW_TOKENS,
        seed: int = 0,
    ) -> list[AcceptanceRow]:
        """How the chains of drafters fare on these prompts, in the exact decoder: a row for each drafter and prompt."""
        found = measure(
            self.runner,
            drafters,
            prompts,
            eos_ids=end_of_text_ids(self.target),
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            num_speculative_tokens=num_speculative_tokens,
            batch_size=64,
            seed=seed,
            target_alone=False,
        )
        return found.rows


def held_out(shared: Path) -> dict[str, list[Prompt]]:
    """See House.prompts."""
    tokenizer = load_tokenizer(shared / "models" / "house")
    chats = {"math": _math(shared), "airline": _airline(shared), "code": _code(shared)}
    learnt, prompts = {tuple(json.loads(line)["prompt"]) for line in _on_policy(shared)}, {}
    for workload, conversations in chats.items():
        found = []
        for row_id, messages in conversations:
            roles = [message["role"] for message in messages]
            ids = render_prompt(tokenizer, Row(row_id, messages))
            if len(ids) <= LONGEST_PROMPT and tuple(ids) not in learnt:  # two conversations may begin alike
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


def _on_policy(shared: Path) -> list[str]:
    return (shared / "data" / "house_onpolicy.jsonl").read_text().splitlines()


def _answers(folder: Path, shared: Path, rows: int | None, workload: str | None) -> None:
    """A row is held out by its place among all rows, whichever of them are asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    said = [(f"house-{place}", row) for place, row in enumerate(map(json.loads, _on_policy(shared)))]
    random.Random(1).shuffle(said)
    held_out = {row_id for place, (row_id, _) in enumerate(said) if place % VALIDATION_EVERY == 0}
    records = [
        {
            "row_id": row_id,
            "session_id": row_id,
            "prompt_shape": row["workload"],
            "workload": row["workload"],
            "prompt_token_ids": row["prompt"],
            "answer_token_ids": row["answer"],
            "finish_reason": "stop" if row["answer"][-1:] == [2] else "length",
            "temperature": 1.0,
        }
        for row_id, row in [each for each in said if workload in (None, each[1]["workload"])][:rows]
    ]
    _write([row for row in records if row["row_id"] not in held_out], folder / "train.parquet")
    _write([row for row in records if row["row_id"] in held_out], folder / "validation.parquet")


def _write(records: Sequence[dict[str, Any]], path: Path) -> None:
    words = ("row_id", "session_id", "prompt_shape", "workload", "finish_reason")
    schema = pa.schema(
        [
            *((name, pa.string()) for name in words),
            ("prompt_token_ids", pa.list_(pa.int32())),
            ("answer_token_ids", pa.list_(pa.int32())),
            ("temperature", pa.float64()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(list(records), schema=schema), path)


def _math(shared: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    lines = (shared / "data" / "gsm8k_test.jsonl").read_text().splitlines()
    return [(f"gsm8k-{place}", [{"role": "user", "content": json.loads(line)["question"]}]) for place, line in enumerate(lines)]


def _airline(shared: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    prompts = []
    for place, chat in enumerate(json.loads((shared / "data" / "tau_airline.json").read_text())):
        if int(chat["task_id"]) % 5 != 4:
            continue
        messages = [
            message
            if message["role"] in ("user", "assistant")
            else {**message, "content": (message["content"] or "")[:LONGEST_MESSAGE]}
            for message in chat["traj"]
        ]
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant" and message.get("content")]
        prompts += [(f"airline-{place}-{at}", messages[:at]) for at in answers[:AIRLINE_TURNS]]
    return prompts


def _code(shared: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    with gzip.open(shared / "data" / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    prompts = []
    for row in rows:
        function = next(
            node
            for node in ast.parse(row["prompt"]).body
            if isinstance(node, ast.FunctionDef) and node.name == row["entry_point"]
        )
        purpose = " ".join((ast.get_docstring(function) or "").split(">>>")[0].split("\n\n")[0].split())
        asked = f"Write the Python function `{function.name}` of module `human_eval`.\n{purpose}"
        prompts.append((row["task_id"].replace("/", "-"), [{"role": "user", "content": asked}]))
    return prompts
