"""How small a student of Qwen2.5-Coder-0.5B-Instruct says what its teacher says, on a shop's mail.

    python -m benchmarks.real_student --models DIR
    python -m benchmarks.real_student --models DIR --quick    # one student of two steps; nothing is recorded

Task: the demo's mail (pipelines.demo), as in benchmarks.real_sft: ROWS mails to learn, HELD_OUT about other things in other
words. The teacher is the base, fine-tuned on the rows by adapters with the documented defaults. A student has LAYERS of its 24
layers, those that importance keeps, and learns from the same rows with the documented defaults of distillation. One seed.

loss       nats a token of the held-out answers; within: loss over the teacher's, less 1
success    share of greedy answers to held-out mails that are the right JSON
curve      [tokens seen, loss of mails like those in training] on the way, from before the first step
smallest   layers of the smallest student whose loss is within 2 % of the teacher's; null where none is
sides      students of half the layers: as above (importance), with evenly spaced layers (even), of the labels alone
           (labels), and from the teacher's tokens on disk (cache); tokens_per_s is that of their training by the clock
"""

import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.real_models import LARGE, THREADS, arguments, model_of, train, write
from benchmarks.real_sft import chat, success
from benchmarks.record import record
from model_ops.documents import held_out_loss, mean_loss, tokenize
from model_ops.models import load_model, load_tokenizer
from model_ops.rendering import Row
from pipelines.demo.mail import mails

SEED, ROWS, VALIDATION, HELD_OUT = 0, 400, 40, 80
LAYERS, HALF = (18, 15, 12), 12
SIDES: dict[str, dict[str, Any]] = {
    "even": {"choose_layers": "even"},
    "labels": {"label_weight": 1.0},
    "cache": {"teacher": "cache"},
}


class Task:
    """The mails, and what a model makes of them."""

    def __init__(self, folder: Path, quick: bool = False):
        drawn = random.Random(SEED)
        alike = mails(ROWS + VALIDATION, drawn)
        self.train, self.validation = alike[:ROWS], alike[ROWS:]
        self.held_out = mails(8 if quick else HELD_OUT, drawn, held_out=True)
        self.folder, self.changes = folder, {"steps": 2} if quick else {}
        for split, part in (("train", self.train), ("validation", self.validation)):
            rows = [{"row_id": f"{split}{n}", "messages": json.dumps(chat(each))} for n, each in enumerate(part)]
            write(rows, folder / "rows", split)

    def learnt(self, name: str, operation: str, model: Path, settings: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
        """Trains; returns the directory and its figures."""
        output, role = self.folder / name, "teacher" if operation == "distill" else "model"
        if self.changes and operation == "distill":
            settings = {**settings, "choose_layers": "even"}  # the search takes minutes
        run = train(
            operation, {role: model, "dataset": self.folder / "rows"}, output, {"seed": SEED, **settings, **self.changes}
        )
        return output, {**self.measured(output), **of_training(run)}

    def measured(self, model: Path) -> dict[str, float]:
        rows = [Row(f"{n}", chat(each)) for n, each in enumerate(self.held_out)]
        documents, _ = tokenize(rows, load_tokenizer(model), 2_048)
        loaded = load_model(model, dtype=torch.float32, attention="packed")
        return {"loss": mean_loss(held_out_loss(loaded, documents)), "success": success(model, self.held_out)}


def of_training(run: dict[str, Any]) -> dict[str, Any]:
    curve, tokens, steady = [], 0, run["steps"][1:]
    for line in run["log"]:
        tokens += line["tokens"]
        curve += [[tokens, round(line["validation_loss"], 4)]] if "validation_loss" in line else []
    seconds = sum(step["seconds"] for step in steady)
    return {
        "curve": curve,
        "seconds": round(sum(step["seconds"] for step in run["steps"])),
        "tokens_per_s": round(sum(step["tokens"] for step in steady) / seconds, 1) if seconds else None,
        "peak_mb": round(run["peak_mb"]),
    }


def main() -> None:
    given = arguments("real_student", __doc__).parse_args()
    base = model_of(given.models, LARGE)
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="millrace-real-student-") as name:
        task = Task(Path(name), given.quick)
        figures: dict[str, Any] = {"base": task.measured(base)}
        teacher, figures["teacher"] = task.learnt("teacher", "sft", base, {"method": "lora"})
        print(json.dumps(figures), flush=True)
        students: dict[str, dict[str, Any]] = {}
        wanted = {f"{layers}": {"layers": layers} for layers in LAYERS} | {
            side: {"layers": HALF, **settings} for side, settings in SIDES.items()
        }
        for student, settings in list(wanted.items())[: 1 if given.quick else None]:
            _, learnt = task.learnt(f"student-{student}", "distill", teacher, settings)
            students[student] = {**learnt, "within": learnt["loss"] / figures["teacher"]["loss"] - 1}
            print(json.dumps({student: students[student]}), flush=True)
    near = [layers for layers in LAYERS if students.get(f"{layers}", {"within": math.inf})["within"] <= 0.02]
    figures |= {
        "students": {layers: students[f"{layers}"] for layers in LAYERS if f"{layers}" in students},
        "sides": {side: students[side] for side in SIDES if side in students},
        "smallest": min(near, default=None),
        "threads": THREADS,
    }
    record("real_student", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
