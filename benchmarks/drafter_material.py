"""What the drafter benchmarks share: prompts of three workloads, the house model's own answers at T = 1, its hidden states.

    python -m benchmarks.drafter_material --cache FOLDER                 # makes all of it, once; minutes

    material = DrafterMaterial.prepare(cache, shared, train_prompts=900, held_out_prompts=100)
    rows = material.rows("math")                                         # answers to train on, as AnswerRow
    states = material.states(rows, (2, 5, 7))                            # the target's hidden states, from the cache folder
    model = material.trained(rows, settings, work)                       # a drafter; previous=... goes on from another
    taus = material.taus(model, "airline", temperature=1.0)              # exact decoder, K = 5, held-out prompts

Training prompts are of the rows the target was trained on (GSM8K train, airline tasks whose id modulo 5 is not 4, functions
of the standard library); held-out ones were seen by neither target nor drafter: GSM8K test, the other airline tasks,
HumanEval's functions asked for as the code workload asks. Airline policies are cut after 600 characters, and prompts of
more than 800 tokens are left out. Everything is named by what determines it: benchmarks that name the same folder share it.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from model_ops import generate
from model_ops.decoding.acceptance import AcceptanceRow
from model_ops.decoding.drafters import Drafter
from model_ops.decoding.incremental import IncrementalModel
from model_ops.decoding.measure_acceptance import measure
from model_ops.decoding.prompts import Prompt, read_prompts
from model_ops.models.model_directory import load_tokenizer
from model_ops.models.target import end_of_text_ids, load_runner
from model_ops.models.target_digest import target_digest
from model_ops.progress import Progress
from model_ops.specs import Job, SpeculatorSettings
from model_ops.speculator import new_drafter
from model_ops.speculators.continue_training import take_over
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.hidden_states import AnswerRow, HiddenStates, read_answers
from model_ops.speculators.speculator_batches import SpeculatorPlan
from model_ops.speculators.teacher import Teacher
from model_ops.speculators.training_loss import SpeculatorLoss
from model_ops.training.trainer import TrainingResult, train

WORKLOADS = ("math", "airline", "code")
MAX_NEW_TOKENS = 128
LONGEST_PROMPT = 800
POLICY_CHARACTERS = 600
MAX_LENGTH = 1_024
Chat = list[dict[str, Any]]


@dataclass
class DrafterMaterial:
    """Made once in `cache`; the target is loaded when something needs it."""

    cache: Path
    shared: Path
    train_prompts: int
    held_out_prompts: int
    _runner: IncrementalModel | None = None

    @classmethod
    def prepare(cls, cache: Path, shared: Path, train_prompts: int = 900, held_out_prompts: int = 100,
                workloads: Sequence[str] = WORKLOADS) -> DrafterMaterial:
        """Answers all prompts of these workloads that are not answered yet. Raises SystemExit where the data is not there."""
        material = cls(cache, shared, train_prompts, held_out_prompts)
        if not (material.target / "config.json").exists() or not (shared / "data" / "tau_airline.json").exists():
            raise SystemExit(f"{shared} lacks models/house or its data: give the folder that has them with --shared")
        for workload in workloads:
            material.answers(workload)
        return material

    @property
    def target(self) -> Path:
        return self.shared / "models" / "house"

    @property
    def runner(self) -> IncrementalModel:
        if self._runner is None:
            self._runner = load_runner(self.target)
        return self._runner

    def answers(self, workload: str) -> Path:
        """A folder with train.parquet, as `generate` writes it; made where it is missing, continued where it was cut."""
        chats = prompts_of(self.shared, workload, "train", self.train_prompts, load_tokenizer(self.target))
        key = hashlib.sha256(json.dumps([target_digest(self.target), chats]).encode()).hexdigest()[:12]
        folder = self.cache / f"answers-{workload}-{key}"
        if not (folder / "train.parquet").exists():
            write_chats(chats, workload, folder / "prompts" / "train.parquet")
            generate.run(Job(
                operation="generate", output=folder, inputs={"target": self.target, "dataset": folder / "prompts"},
                settings={"temperature": 1.0, "max_new_tokens": MAX_NEW_TOKENS}), Progress())
        return folder

    def rows(self, *workloads: str) -> list[AnswerRow]:
        """The answers of these workloads, one workload after the other."""
        return [row for workload in workloads for row in read_answers(self.answers(workload) / "train.parquet", MAX_LENGTH)[0]]

    def held_out(self, workload: str) -> list[Prompt]:
        """Prompts that neither target nor drafter has seen, as token ids."""
        tokenizer = load_tokenizer(self.target)
        chats = prompts_of(self.shared, workload, "held_out", self.held_out_prompts, tokenizer)
        path = self.cache / f"held-out-{workload}-{len(chats)}" / "test.parquet"
        # read_prompts takes what stands before the last assistant message
        write_chats([[*chat, {"role": "assistant", "content": "-"}] for chat in chats], workload, path)
        return read_prompts(path.parent, "test", tokenizer)

    def states(self, rows: Sequence[AnswerRow], layer_ids: Sequence[int]) -> HiddenStates:
        """The target's hidden states over these rows, computed once."""
        states = HiddenStates(self.cache / "states", rows, layer_ids, target_digest(self.target))
        states.compute(self.runner, Progress())
        return states

    def trained(self, rows: list[AnswerRow], settings: SpeculatorSettings, work: Path,
                previous: DraftModel | None = None) -> tuple[DraftModel, TrainingResult]:
        """A drafter trained on these rows; settings are resolved. With `previous` it goes on from that one."""
        model, _ = new_drafter(self.target, self.runner, rows, [], settings)
        if previous is not None:
            take_over(model, previous)
        plan = SpeculatorPlan(rows, self.states(rows, model.capture), settings)
        loss = SpeculatorLoss(Teacher(self.runner.head.weight, model.target_ids), settings)
        result = train(model, plan, loss, settings, work, Progress(), "speculator")
        return model.eval(), result

    def taus(self, model: DraftModel, workload: str, temperature: float, num_speculative_tokens: int = 5,
             seed: int = 0) -> list[AcceptanceRow]:
        """How a drafter's chains fare on the held-out prompts of a workload, one row a prompt."""
        return self.measured({"drafter": model.drafter()}, workload, temperature, num_speculative_tokens, seed)

    def measured(self, drafters: dict[str, Drafter], workload: str, temperature: float, num_speculative_tokens: int = 5,
                 seed: int = 0) -> list[AcceptanceRow]:
        """The same for several drafters; rows carry the drafter's name."""
        with torch.no_grad():
            found = measure(self.runner, drafters, self.held_out(workload), eos_ids=end_of_text_ids(self.target),
                            temperature=temperature, max_new_tokens=MAX_NEW_TOKENS,
                            num_speculative_tokens=num_speculative_tokens, batch_size=64, seed=seed)
        return [row for row in found.rows if row.drafter in drafters]


def prompts_of(shared: Path, workload: str, part: str, count: int, tokenizer) -> list[Chat]:
    """`count` chats of a workload, fewer where there are not so many, each waiting for an answer; a seeded choice."""
    if workload == "code" and part == "train":
        chats = _functions_of_the_target(shared / "data", tokenizer)
    else:
        chats = {"math": _math, "airline": _airline, "code": _problems}[workload](shared / "data", part)
    random.Random(f"{workload} {part}").shuffle(chats)
    chosen: list[Chat] = []
    for chat in chats:
        if len(chosen) == count:
            break
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        if len(ids) <= LONGEST_PROMPT:
            chosen.append(chat)
    return chosen


def _math(data: Path, part: str) -> list[Chat]:
    lines = (data / f"gsm8k_{'train' if part == 'train' else 'test'}.jsonl").read_text().splitlines()
    return [[{"role": "user", "content": json.loads(line)["question"]}] for line in lines]


def _airline(data: Path, part: str) -> list[Chat]:
    chats = []
    for conversation in json.loads((data / "tau_airline.json").read_text()):
        if (conversation["task_id"] % 5 == 4) == (part == "held_out"):
            first, *rest = conversation["traj"]
            messages = [{**first, "content": first["content"][:POLICY_CHARACTERS]}, *rest]
            # what the agent said before is history as it stands: only the end of each beginning is asked
            said = [{**message, "weight": 0} if message["role"] == "assistant" else message for message in messages]
            chats += [said[:place] for place, message in enumerate(messages) if message["role"] == "assistant"]
    return chats


def _functions_of_the_target(data: Path, tokenizer) -> list[Chat]:
    """What the target was trained to write, in the words of its training rows."""
    found = set()
    for line in (data / "house_onpolicy.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["workload"] == "code":
            asked = re.fullmatch(r"<\|im_start\|>user\n(.*?)<\|im_end\|>\n<\|im_start\|>assistant\n",
                                 tokenizer.decode(row["prompt"]), re.S)
            found.update([asked.group(1)] if asked else [])
    return [[{"role": "user", "content": text}] for text in sorted(found)]


def _problems(data: Path, _: str) -> list[Chat]:
    with gzip.open(data / "HumanEval.jsonl.gz", "rt") as file:
        return [[{"role": "user", "content": _function_wanted(json.loads(line))}] for line in file]


def _function_wanted(problem: dict[str, Any]) -> str:
    """HumanEval's problem in the words of the code workload: the function's name and the first lines of its docstring."""
    tree = ast.parse(problem["prompt"] + "    pass\n")
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == problem["entry_point"])
    words = (ast.get_docstring(function) or "").split(">>>")[0].strip()
    return f"Write the Python function `{function.name}` of module `problems`.\n{words}"


def write_chats(chats: Sequence[Chat], workload: str, path: Path) -> None:
    """Chats as a dataset's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ("row_id", "session_id", "prompt_shape", "workload", "messages", "tools")
    rows = [(f"{workload}-{number}", f"{workload}-{number}", workload, workload, json.dumps(chat), None)
            for number, chat in enumerate(chats)]
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows],
                                        schema=pa.schema([(name, pa.string()) for name in names])), path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_material", description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="where it is kept")
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--train-prompts", type=int, default=900)
    given = parser.parse_args()
    material = DrafterMaterial.prepare(given.cache, given.shared, given.train_prompts)
    for workload in WORKLOADS:
        rows = material.rows(workload)
        print(f"{workload}: {len(rows)} answers, {sum(len(row.ids) - row.prompt_tokens for row in rows)} tokens of "
              f"{sum(len(row.ids) for row in rows)}; {len(material.held_out(workload))} held-out prompts")


if __name__ == "__main__":
    main()
