"""What reinforcement fine-tuning makes of a model that knows a task halfway, beside fine-tuning on the right answers.

    python -m benchmarks.rft_learns --shared ../shared               # about 70 minutes on one idle core
    python -m benchmarks.rft_learns --shared ../shared --processes 2 # that many seeds at once
    python -m benchmarks.rft_learns --shared ../shared --quick       # one seed, few steps; nothing is recorded
    python -m benchmarks.rft_learns --tasks count                    # some of the tasks

count: how often a stands among eight letters of a, b, c: 0 to 5 times. maybe: a question to which maybe is worth 1, no 0.75 and
yes 0.5, by a grading function of a file. The house model (10M parameters) learns the form of answers by a few steps of
fine-tuning, on right answers (maybe: on all three words alike), and then is right sometimes.

start: share of right greedy answers to HELD_OUT items, which no row of any training asks. end: after `rft` on PROMPTS prompts,
PROMPTS_PER_STEP a step, so many answers each as the task says, with a rate that falls to 0. ceiling: after fine-tuning on the
right answers of the same prompts, until more steps add nothing. A seed draws the items, the start and the order. `share` is end
over ceiling, `worst_share` that of the worst seed; answers and seconds are those of the training. `curve` is the mean grade of
the sampled answers in each tenth of the training.

Last line: {TASK: {start, end, ceiling: [mean, low, high], share, worst_share, answers, seconds, curve, by_seed}}.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.held_out import DrawnItems, Item, drawn_items
from benchmarks.preference_gain import PROJECT, asked, interval, said, write
from benchmarks.record import record
from model_ops.decoding import decode, load_runner, render_prompt
from model_ops.jobs import Job, Progress
from model_ops.models import end_of_text_ids, load_tokenizer
from model_ops.operations import rft, sft
from model_ops.rendering import Row

SEEDS, THREADS = (3, 4, 5), 1
"""Rates and steps were chosen on seeds 0 to 2 and 9."""
RECORDED = PROJECT / "benchmarks/results/rft_learns.json"
START_ROWS, PROMPTS, HELD_OUT = 960, 960, 256
PROMPTS_PER_STEP, ANSWERS, MAX_NEW_TOKENS = 12, 8, 6
SFT_RATE, SFT_TOKENS = 1e-4, 1_536
WORDS = ("maybe", "no", "yes")
WORTH = """
def worth(answer):
    return {"maybe": 1.0, "no": 0.75, "yes": 0.5}.get(answer.strip().split(" ")[0].strip(".").lower(), 0.0)
"""


def letters(count: int, seed: int) -> list[Item]:
    drawn, found = random.Random(seed), []
    for number in range(count):
        right = drawn.randrange(6)  # each as often: a model that is never right about a number learns nothing of it
        drawn_letters = ["a"] * right + [drawn.choice("bc") for _ in range(8 - right)]
        drawn.shuffle(drawn_letters)
        question = f"How many a are in: {' '.join(drawn_letters)}?"
        found.append({"row_id": f"c{number}", "question": question, "answer": str(right)})
    return found


def questions(count: int, seed: int) -> list[Item]:
    drawn = random.Random(seed)
    return [
        {
            "row_id": f"q{number}",
            "question": f"Is {drawn.randrange(1_000)} better than {drawn.randrange(1_000)}?",
            "answer": WORDS[0],
        }
        for number in range(count)
    ]


@dataclass(frozen=True)
class Task:
    """A task and how it is learnt."""

    items: Callable[[int, int], list[Item]]
    start_steps: int
    steps: int
    learning_rate: float
    answers: int
    ceiling_steps: int
    words: Sequence[str] = ()
    """What the start is fine-tuned on instead of the right answers, all alike."""


TASKS = {"count": Task(letters, 40, 240, 3e-5, 8, 80), "maybe": Task(questions, 20, 20, 3e-5, 8, 20, WORDS)}


def items_of(task: str, seed: int, quick: bool = False) -> DrawnItems:
    return drawn_items(TASKS[task].items, (START_ROWS, 96 if quick else PROMPTS, 32 if quick else HELD_OUT), seed)


class Trial:
    """One seed of a task."""

    def __init__(self, house: Path, folder: Path, task: str, seed: int, quick: bool):
        self.house, self.folder, self.task, self.seed = house, folder, TASKS[task], seed
        self.tokenizer, self.quick, self.steps = load_tokenizer(house), quick, 2 if quick else self.task.steps
        self.start_rows, self.prompts, self.held_out = items_of(task, seed, quick)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rewards.py").write_text(WORTH)

    def run(self) -> dict[str, Any]:
        start = self.tuned(self.house, "start", self.start_rows, self.task.start_steps, self.task.words)
        found: dict[str, Any] = {"start": self.success(start)}
        found["ceiling"] = self.success(
            self.tuned(start, "ceiling", self.prompts, 2 if self.quick else self.task.ceiling_steps)
        )
        began_s = time.monotonic()
        numbers = self.rewarded(start)
        found |= {
            "seconds": time.monotonic() - began_s,
            "answers": numbers["rollouts"],
            "end": self.success(self.folder / "rft"),
        }
        lines = (self.folder / "rft/metrics.jsonl").read_text().splitlines()
        rewards = [json.loads(line)["reward"] for line in lines]
        tenths = [rewards[len(rewards) * n // 10 : len(rewards) * (n + 1) // 10] for n in range(10)]
        found["curve"] = [round(fmean(tenth), 3) for tenth in tenths if tenth]
        shutil.rmtree(self.folder)
        return found

    def tuned(self, model: Path, name: str, rows: list[Item], steps: int, words: Sequence[str] = ()) -> Path:
        """The model after fine-tuning on the rows' answers, or on words in turn."""
        chats = [
            [*asked(each), said(words[place % len(words)] if words else each["answer"])] for place, each in enumerate(rows)
        ]
        write(
            [{"row_id": each["row_id"], "messages": json.dumps(chat)} for each, chat in zip(rows, chats, strict=True)],
            self.folder / f"{name}-rows",
        )
        settings = {"steps": steps, "learning_rate": SFT_RATE, "tokens_per_step": SFT_TOKENS, "validation_tokens": 1_000}
        self._done(sft, {"model": model, "dataset": self.folder / f"{name}-rows"}, name, settings)
        return self.folder / name

    def rewarded(self, start: Path) -> dict[str, Any]:
        settings = {**self.rewards_settings(), "steps": self.steps, "answers": self.task.answers, "schedule": "linear"}
        return self._done(rft, {"model": start, "prompts": self.written_prompts()}, "rft", settings)

    def rewards_settings(self) -> dict[str, Any]:
        return {
            "grader": f"{self.folder}/rewards.py:worth" if self.task.words else "verifier",
            "learning_rate": self.task.learning_rate,
            "prompts_per_step": PROMPTS_PER_STEP,
            "answers": ANSWERS,
            "max_new_tokens": MAX_NEW_TOKENS,
            "max_length": 256,
            "precision": "float32",
            "checkpoint_every": 10**6,
            "held_out_prompts": 0,
        }

    def written_prompts(self) -> Path:
        rows = [
            {
                "row_id": each["row_id"],
                "messages": json.dumps(asked(each)),
                "verifier": json.dumps({"kind": "number", "answer": each["answer"]}),
            }
            for each in self.prompts
        ]
        write(rows, self.folder / "prompts")
        return self.folder / "prompts"

    def _done(self, operation: Any, inputs: dict[str, Path], name: str, settings: dict[str, Any]) -> dict[str, Any]:
        given = {"max_length": 256, "precision": "float32", "seed": self.seed, "checkpoint_every": 10**6, **settings}
        named = operation.__name__.rpartition(".")[2]
        job = Job(operation=named, inputs=inputs, output=self.folder / name, settings=given, threads=THREADS)
        return operation.run(job, Progress())

    def success(self, model: Path) -> float:
        """Share of right greedy answers to the held-out items."""
        ends = end_of_text_ids(model)
        found = decode(
            load_runner(model),
            [render_prompt(self.tokenizer, Row(each["row_id"], asked(each))) for each in self.held_out],
            [each["row_id"] for each in self.held_out],
            eos_ids=ends,
            temperature=0.0,
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=256,
        )
        texts = [self.tokenizer.decode([token for token in each.tokens if token not in ends]).strip() for each in found]
        return fmean(text == each["answer"] for text, each in zip(texts, self.held_out, strict=True))


def trial(house: Path, folder: Path, task: str, seed: int, quick: bool) -> dict[str, Any]:
    found = Trial(house, folder, task, seed, quick).run()
    print(json.dumps({"task": task, "seed": seed, **found}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rft_learns", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="folder with models/house")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps; nothing is recorded")
    parser.add_argument("--processes", type=int, default=1, help="seeds that are learnt at once, one thread each")
    parser.add_argument(
        "--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="some of them; the others stay recorded"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="other seeds; nothing is recorded")
    given = parser.parse_args()
    house, figures = given.shared.resolve() / "models/house", {}
    with (
        tempfile.TemporaryDirectory(prefix="millrace-rft-learns-") as name,
        ProcessPoolExecutor(given.processes, get_context("spawn"), torch.set_num_threads, (THREADS,)) as pool,
    ):
        learnt = {
            task: [
                pool.submit(trial, house, Path(name) / f"{task}-{seed}", task, seed, given.quick)
                for seed in (given.seeds[:1] if given.quick else given.seeds)
            ]
            for task in given.tasks
        }
        for task, of_task in learnt.items():
            runs = [each.result() for each in of_task]
            shares = [run["end"] / run["ceiling"] if run["ceiling"] else 0.0 for run in runs]
            figures[task] = {
                **{side: interval([run[side] for run in runs]) for side in ("start", "end", "ceiling")},
                "share": round(fmean(shares), 3),
                "worst_share": round(min(shares), 3),
                "answers": runs[0]["answers"],
                "seconds": round(fmean(run["seconds"] for run in runs), 1),
                "curve": [round(fmean(each), 3) for each in zip(*(run["curve"] for run in runs), strict=True)],
                "by_seed": [[round(run[side], 3) for side in ("start", "end", "ceiling")] for run in runs],
            }
    whole = not given.quick and tuple(given.seeds) == SEEDS
    if whole and RECORDED.exists():
        figures = {**json.loads(RECORDED.read_text())["figures"], **figures}
    record("rft_learns", figures, keep=whole and set(figures) == set(TASKS))


if __name__ == "__main__":
    main()
