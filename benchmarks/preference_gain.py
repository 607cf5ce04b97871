"""What preferences add to a model that knows a task halfway: held-out success of each loss over fine-tuning on the chosen side.

    python -m benchmarks.preference_gain --shared ../shared               # about 60 minutes on one idle core
    python -m benchmarks.preference_gain --shared ../shared --quick       # one seed, few steps; nothing is recorded
    python -m benchmarks.preference_gain --shared ../shared --search      # learning rates, on a seed of its own

Task: sort six letters of a to f. An answer's grade is the share of letters in their right place, so most answers are better or
worse than others and few are right. The house model (10M parameters) learns the form of answers on START_ROWS right ones. It
answers PROMPTS prompts ANSWERS times at temperature 1; best against worst are the pairs that DPO, KTO and APO-zero learn, and
the chosen sides of the same pairs are what SFT learns; `chosen_right` is the share of them that is wholly right. Semi-online
methods make their pairs while they train, of the same prompts; they sample no more answers than those before. dpo_sft adds the
negative log-likelihood of the chosen side to DPO, as RPO does; semi_online_sft is that term alone, to tell which of both helps.
All have about the same number of tokens in training; what each had is in the figures. Success is the share of right greedy
answers to HELD_OUT items, which no row of any training asks. A seed draws the items, the start, the pairs and the order; gains
over SFT are by seed, with Student's t over three seeds.

Last line: {start, chosen_right, success: {method: [mean, low, high]}, gain_over_sft: {...}, tokens: {method: mean}, ...}.
"""

import argparse
import json
import math
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.held_out import DrawnItems, drawn_items
from benchmarks.record import record
from model_ops.decoding import decode, load_runner, render_prompt
from model_ops.drafting import student
from model_ops.graders import Grade, GradedAnswer
from model_ops.jobs import Job, Progress
from model_ops.models import end_of_text_ids, load_tokenizer
from model_ops.operations import preference, sft
from model_ops.preferences.sampled_rounds import best_and_worst
from model_ops.rendering import Row

SEEDS, SEARCH_SEED, THREADS = (0, 1, 2), 9, 1
START_ROWS, START_STEPS, PROMPTS, ANSWERS, HELD_OUT = 960, 40, 1_920, 4, 512
LETTERS, LENGTH = "abcdef", 6
STEPS, TOKENS_PER_STEP = 48, 1_536
MAX_NEW_TOKENS, SYNC_STEPS, PROMPTS_PER_STEP, ONLINE_STEPS = 14, 4, 32, 60
RATES = (3e-5, 1e-4, 3e-4)
BOTH = [{"dpo": 0.2}, {"sft": 1.0}]
METHODS: dict[str, dict[str, Any]] = {
    "sft": {"learning_rate": 3e-4},
    "dpo": {"loss": "dpo", "learning_rate": 1e-4},
    "kto": {"loss": "kto", "learning_rate": 1e-4},
    "apo_zero": {"loss": "apo_zero", "learning_rate": 1e-4},
    "dpo_sft": {"loss": BOTH, "learning_rate": 3e-4},
    "semi_online_dpo": {"loss": "dpo", "learning_rate": 3e-5},
    "semi_online_dpo_sft": {"loss": BOTH, "learning_rate": 3e-4},
    "semi_online_sft": {"loss": [{"dpo": 1e-9}, {"sft": 1.0}], "learning_rate": 3e-4},
}
"""sft and the semi-online ones at the best rate of a search on SEARCH_SEED, the others at that of an earlier task."""
GRADES = """
def places(prompt, answer, columns):
    right, said = sorted(prompt[-1]["content"].partition(": ")[2].split()), answer.split()
    return sum(one == other for one, other in zip(right, said)) / max(len(right), len(said))
"""
PROJECT = Path(__file__).parents[1]


def items(count: int, seed: int) -> list[dict[str, Any]]:
    """Questions with their answer."""
    drawn, found = random.Random(seed), []
    for number in range(count):
        letters = [drawn.choice(LETTERS) for _ in range(LENGTH)]
        found.append(
            {
                "row_id": f"i{number}",
                "question": f"Sort these letters: {' '.join(letters)}",
                "answer": " ".join(sorted(letters)),
            }
        )
    return found


def items_of(seed: int, quick: bool = False) -> DrawnItems:
    return drawn_items(items, (START_ROWS, 64 if quick else PROMPTS, 64 if quick else HELD_OUT), seed)


class Trial:
    """One seed: its items, the model that it starts from, and what each method makes of it."""

    def __init__(self, house: Path, folder: Path, seed: int, quick: bool):
        self.folder, self.seed, self.quick = folder, seed, quick
        start, self.prompts, self.held_out = items_of(seed, quick)
        self.tokenizer = load_tokenizer(house)
        rows = [{"row_id": each["row_id"], "messages": json.dumps([*asked(each), said(each["answer"])])} for each in start]
        write(rows, folder / "chats")
        self.start = self.trained("sft", house, folder / "start", "chats", {"steps": START_STEPS, "learning_rate": 1e-4})[0]
        self.chosen_right: list[bool] = []
        """Of each pair."""
        self.sample_pairs()
        write([{"row_id": each["row_id"], "messages": json.dumps(asked(each))} for each in self.prompts], folder / "prompts")
        (folder / "rewards.py").write_text(GRADES)

    def sample_pairs(self) -> None:
        """Writes the start's own answers as pairs, and their chosen sides as conversations."""
        answers = self.answers(self.start, self.prompts, ANSWERS, 1.0)
        pairs, chosen = [], []
        for each, texts in zip(self.prompts, answers, strict=True):
            grades = [Grade(in_place(each, text)) for text in texts]
            graded = [GradedAnswer(text, {"content": text}) for text in texts]
            sides = best_and_worst(grades, graded, [True] * len(texts), 0.0)
            if isinstance(sides, str):
                continue
            best, worst = (json.dumps([said(texts[side])]) for side in sides)
            pairs.append({"row_id": each["row_id"], "prompt": json.dumps(asked(each)), "chosen": best, "rejected": worst})
            chosen.append({"row_id": each["row_id"], "messages": json.dumps([*asked(each), said(texts[sides[0]])])})
            self.chosen_right.append(right(each, texts[sides[0]]))
        write(pairs, self.folder / "pairs")
        write(chosen, self.folder / "chosen")

    def result(self, method: str, learning_rate: float | None = None) -> dict[str, float]:
        """Held-out success of a method, and what it cost."""
        is_online = method.startswith("semi_online")
        steps = ONLINE_STEPS if is_online else STEPS
        settings = {**METHODS[method], "steps": 3 if self.quick else steps}
        if learning_rate is not None:
            settings["learning_rate"] = learning_rate
        operation = "sft" if method == "sft" else "preference"
        rows = "chosen" if method == "sft" else "prompts" if is_online else "pairs"
        if is_online:
            settings["on_policy"] = {
                "prompts": "rl_prompts",
                "prompts_per_step": PROMPTS_PER_STEP,
                "answers": ANSWERS,
                "sync_steps": SYNC_STEPS,
                "max_new_tokens": MAX_NEW_TOKENS,
                "batch_size": 256,
                "grader": f"{self.folder}/rewards.py:places",
            }
        began_s, output = time.monotonic(), self.folder / "out"
        model, numbers = self.trained(operation, self.start, output, rows, settings)
        found = {"success": self.success(model), "tokens": numbers["tokens"], "seconds": time.monotonic() - began_s}
        shutil.rmtree(output)
        return found

    def trained(
        self, operation: str, model: Path, output: Path, rows: str, settings: dict[str, Any]
    ) -> tuple[Path, dict[str, Any]]:
        """Runs an operation; returns its model and its metrics."""
        given = {"tokens_per_step": TOKENS_PER_STEP, "max_length": 256, "precision": "float32", "seed": self.seed}
        given |= {"checkpoint_every": 10**6, **settings}
        if operation == "sft":
            given["validation_tokens"] = 1_000
        inputs = {"model": model, ("prompts" if rows == "prompts" else "dataset"): self.folder / rows}
        job = Job(operation=operation, inputs=inputs, output=output, settings=given, threads=THREADS)
        numbers = {"sft": sft, "preference": preference}[operation].run(job, Progress())
        return output, numbers

    def success(self, model: Path) -> float:
        """Share of right greedy answers to the held-out items."""
        answers = self.answers(model, self.held_out, 1, 0.0)
        return fmean(right(each, text) for each, (text,) in zip(self.held_out, answers, strict=True))

    def answers(self, model: Path, questions: Sequence[dict[str, Any]], count: int, temperature: float) -> list[list[str]]:
        """Texts of `count` answers to each question."""
        ends = end_of_text_ids(model)
        prompts = [render_prompt(self.tokenizer, Row(each["row_id"], asked(each))) for each in questions for _ in range(count)]
        names = [f"{place}" for place in range(len(prompts))]
        found = decode(
            load_runner(model),
            prompts,
            names,
            eos_ids=ends,
            temperature=temperature,
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=256,
            seed=self.seed,
        )
        texts = [self.tokenizer.decode([token for token in each.tokens if token not in ends]) for each in found]
        return [texts[begin : begin + count] for begin in range(0, len(texts), count)]


def asked(item: dict[str, Any]) -> list[dict[str, str]]:
    return [{"role": "user", "content": item["question"]}]


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def right(item: dict[str, Any], text: str) -> bool:
    return text.strip() == item["answer"]


def in_place(item: dict[str, Any], text: str) -> float:
    """The share of letters in their right place, as GRADES has it."""
    wanted, said = item["answer"].split(), text.split()
    return sum(one == other for one, other in zip(wanted, said, strict=False)) / max(len(wanted), len(said))


def write(rows: list[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")


def interval(values: Sequence[float]) -> list[float | None]:
    """Mean and 95 % interval over seeds; no interval for one seed."""
    if len(values) < 2:
        return [values[0], None, None]
    reach = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return [round(each, 4) for each in (fmean(values), fmean(values) - reach, fmean(values) + reach)]


def trial_of(house: Path, folder: Path, seed: int, quick: bool) -> dict[str, Any]:
    """What a seed starts from, and what each method makes of it."""
    trial = Trial(house, folder, seed, quick)
    found = {"start": trial.success(trial.start), "pairs": len(trial.chosen_right), "chosen_right": fmean(trial.chosen_right)}
    print(f"seed {seed}: {found}", flush=True)
    runs = {}
    for method in METHODS:
        runs[method] = trial.result(method)
        print(f"seed {seed}: {method} {runs[method]}", flush=True)
    return {**found, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="folder with models/house")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps; nothing is recorded")
    parser.add_argument("--processes", type=int, default=1, help="seeds that are learnt at once, one thread each")
    parser.add_argument("--search", action="store_true", help="prints the success of each method at each learning rate")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    house = given.shared.resolve() / "models/house"
    with tempfile.TemporaryDirectory() as name:
        if given.search:
            trial = Trial(house, Path(name), SEARCH_SEED, given.quick)
            print(
                f"start {trial.success(trial.start):.3f}, {fmean(trial.chosen_right):.3f} of the chosen are right", flush=True
            )
            for method in METHODS:
                for rate in RATES:
                    print(f"{method} {rate:g} {trial.result(method, rate)}", flush=True)
            return
        with ProcessPoolExecutor(given.processes, get_context("spawn"), torch.set_num_threads, (THREADS,)) as pool:
            seeds = SEEDS[:1] if given.quick else SEEDS
            waiting = [pool.submit(trial_of, house, Path(name) / str(seed), seed, given.quick) for seed in seeds]
            found = [each.result() for each in waiting]
    runs = {method: [of_seed["runs"][method] for of_seed in found] for method in METHODS}
    sides = {method: [run["success"] for run in found] for method, found in runs.items()}
    figures = {
        "start": interval([of_seed["start"] for of_seed in found]),
        "pairs": [of_seed["pairs"] for of_seed in found],
        "chosen_right": interval([of_seed["chosen_right"] for of_seed in found]),
        "success": {method: interval(values) for method, values in sides.items()},
        "gain_over_sft": {
            method: interval([one - other for one, other in zip(values, sides["sft"], strict=True)])
            for method, values in sides.items()
            if method != "sft"
        },
        "tokens": {method: round(fmean(run["tokens"] for run in found)) for method, found in runs.items()},
        "seconds": {method: round(fmean(run["seconds"] for run in found), 1) for method, found in runs.items()},
        "settings": {"steps": STEPS, "online_steps": ONLINE_STEPS, "tokens_per_step": TOKENS_PER_STEP, "methods": METHODS},
    }
    record("preference_gain", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
