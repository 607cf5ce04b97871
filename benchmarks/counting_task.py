"""A made task for benchmarks of speed: how often a stands among eight letters of a, b, c. The house model (10M parameters)
learns the form of answers by a few steps of fine-tuning, and is right sometimes. benchmarks.async_rl trains on it."""

import json
import random
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.held_out import DrawnItems, Item, drawn_items
from benchmarks.real_models import answers, asked, said, write
from model_ops.jobs import Job, Progress
from model_ops.operations import sft

SEEDS, THREADS = (3, 4, 5), 1
START_ROWS, PROMPTS, HELD_OUT, START_STEPS = 960, 960, 256, 40
PROMPTS_PER_STEP, ANSWERS, MAX_NEW_TOKENS, RATE = 12, 8, 6, 3e-5
SFT_RATE, SFT_TOKENS = 1e-4, 1_536


def letters(count: int, seed: int) -> list[Item]:
    drawn, found = random.Random(seed), []
    for number in range(count):
        right = drawn.randrange(6)  # each as often: a model that is never right about a number learns nothing of it
        drawn_letters = ["a"] * right + [drawn.choice("bc") for _ in range(8 - right)]
        drawn.shuffle(drawn_letters)
        question = f"How many a are in: {' '.join(drawn_letters)}?"
        found.append({"row_id": f"c{number}", "question": question, "answer": str(right)})
    return found


def items_of(seed: int) -> DrawnItems:
    return drawn_items(letters, (START_ROWS, PROMPTS, HELD_OUT), seed)


class Trial:
    """One seed of the task."""

    def __init__(self, house: Path, folder: Path, seed: int):
        self.house, self.folder, self.seed = house, folder, seed
        self.start_rows, self.prompts, self.held_out = items_of(seed)
        folder.mkdir(parents=True, exist_ok=True)

    def tuned_start(self) -> Path:
        """The house model after fine-tuning on right answers."""
        rows = [
            {"row_id": each["row_id"], "messages": json.dumps([*asked(each["question"]), said(each["answer"])])}
            for each in self.start_rows
        ]
        settings = {"steps": START_STEPS, "learning_rate": SFT_RATE, "tokens_per_step": SFT_TOKENS, "validation_tokens": 1_000}
        self._done(sft, {"model": self.house, "dataset": write(rows, self.folder / "start-rows")}, "start", settings)
        return self.folder / "start"

    def rewards_settings(self) -> dict[str, Any]:
        """Of reinforcement fine-tuning."""
        return {
            "grader": "verifier",
            "learning_rate": RATE,
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
                "messages": json.dumps(asked(each["question"])),
                "verifier": json.dumps({"kind": "number", "answer": each["answer"]}),
            }
            for each in self.prompts
        ]
        return write(rows, self.folder / "prompts")

    def success(self, model: Path) -> float:
        """Share of right greedy answers to the held-out items."""
        texts = answers(model, [asked(each["question"]) for each in self.held_out], MAX_NEW_TOKENS, batch_size=256)
        return fmean(text.strip() == each["answer"] for text, each in zip(texts, self.held_out, strict=True))

    def _done(self, operation: Any, inputs: dict[str, Path], name: str, settings: dict[str, Any]) -> dict[str, Any]:
        given = {"max_length": 256, "precision": "float32", "seed": self.seed, "checkpoint_every": 10**6, **settings}
        named = operation.__name__.rpartition(".")[2]
        job = Job(operation=named, inputs=inputs, output=self.folder / name, settings=given, threads=THREADS)
        return operation.run(job, Progress())
