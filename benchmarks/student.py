"""A student of half the house model's layers: plain fine-tuning, distillation, and steps that it answers itself.

    python -m benchmarks.student                                          # 2 idle cores, three quarters of an hour
    python -m benchmarks.student --quick                                  # a few steps: the figures mean nothing
    python -m benchmarks.student --steps 800 --seeds 1 --sides sft distilled      # a longer run, which is not recorded

Teacher ../shared/models/house (10 layers, 10M). Rows are GSM8K's training questions with their answers, which the teacher was
trained on; held out are test questions. Every training of a seed has the same steps and the same rows in the same order. Sides:

- sft: cross-entropy of the answers, at the best of three learning rates for held-out bits. All other sides have one rate.
- distilled: forward KL.
- even: as distilled, with evenly spaced layers. All other sides have the layers that importance keeps.
- on_policy: reverse KL at the student's own samples, in every step. then_on_policy: as distilled, and in the second half
  sampled steps, with the share of preset thorough.

bits_per_byte: of held-out answers, end of turn included. own_kl: KL(student || teacher) in nats a token along answers that the
student samples to held-out prompts (T = 1): how far from the teacher it is where it goes by itself.

advantage_kept: (bits of sft - bits of distilled) / (bits of sft - bits of the teacher). importance_gain: the same share of
even against distilled. on_policy_gain: 1 - own_kl of then_on_policy / the smaller own_kl of
distilled and on_policy. Each as [mean, smallest, largest] over the seeds.
"""

import argparse
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.drafter_peers import mean_and_range
from benchmarks.house import House
from benchmarks.record import record
from benchmarks.sft_material import gsm8k
from model_ops.answers import InProcessEngine
from model_ops.documents.conversations import tokenize
from model_ops.documents.documents import Documents
from model_ops.documents.likelihood import held_out_loss
from model_ops.documents.packing import PackedPlan, to_batches
from model_ops.jobs import Progress
from model_ops.models.model_directory import end_of_text_ids, load_model, load_tokenizer
from model_ops.objectives.distillation import Divergence, OnPolicyPlan, SampledBatch, answered, distillation_loss
from model_ops.objectives.on_policy_settings import OnPolicySettings
from model_ops.objectives.sft import next_token_loss
from model_ops.operations.distill_settings import StudentSettings
from model_ops.pruning.layer_importance import evenly_spaced, least_important, make_student
from model_ops.training.settings import first_documents
from model_ops.training.trainer import train

PROJECT = Path(__file__).resolve().parent.parent
MAX_LENGTH, TOKENS_PER_STEP, MEASURED_TOKENS, HELD_OUT = 1_024, 2_048, 8_192, 300
LEARNING_RATE, SFT_LEARNING_RATES = 2e-3, (2.5e-4, 5e-4, 1e-3)
SEEDS = (0, 1, 2)
PRESET = StudentSettings(preset="thorough").resolved()
ON_POLICY = PRESET.on_policy


@dataclass(frozen=True)
class Side:
    """One way to train the student. of_rows: None for plain fine-tuning, at several rates. sampled: settings of steps that it
    answers. own: whether own_kl is measured."""

    of_rows: Divergence | None
    layers: str = "importance"
    sampled: OnPolicySettings | None = None
    own: bool = False


SIDES = {
    "sft": Side(None),
    "distilled": Side(Divergence(), own=True),
    "even": Side(Divergence(), layers="even"),
    "on_policy": Side(Divergence(), sampled=ON_POLICY.model_copy(update={"share": 1.0, "after": 0.0}), own=True),
    "then_on_policy": Side(Divergence(), sampled=ON_POLICY, own=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.student", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of every training")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="only these; nothing is recorded")
    parser.add_argument("--quick", action="store_true", help="a few steps of one seed: the figures mean nothing")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    steps, seeds = (3, 1) if given.quick else (given.steps, given.seeds)
    with tempfile.TemporaryDirectory(prefix="student-") as scratch:
        bench = Bench(given.shared, Path(scratch), steps, SEEDS[:seeds], prompts=4 if given.quick else 96)
        for found in bench.measured(given.sides):
            if set(given.sides) == set(SIDES):
                record("student", bench.figures(found), keep=not given.quick)


class Bench:
    """Everything of one run of the benchmark."""

    def __init__(self, shared: Path, folder: Path, steps: int, seeds: Sequence[int], prompts: int):
        target = House(shared, folder / "house").target
        self.folder, self.steps, self.seeds = folder, steps, seeds
        self.tokenizer, self.ends = load_tokenizer(target), end_of_text_ids(target)
        self.rows = Documents.gather(tokenize(gsm8k(shared, "train", plain=True), self.tokenizer, MAX_LENGTH)[0])
        self.held_out = Documents.gather(tokenize(gsm8k(shared, "test", HELD_OUT, plain=True), self.tokenizer, MAX_LENGTH)[0])
        self.bytes = sum(
            len(self.tokenizer.decode(document.input_ids[document.targets]).encode()) for document in self.held_out
        )
        self.prompts = [
            (document.row_id, document.input_ids[: int(document.targets.argmax())].tolist())
            for document in self.held_out[:prompts]
        ]
        self.teacher = load_model(target, dtype=torch.float32).requires_grad_(False)
        self.teacher_bits = self.bits_per_byte(self.teacher)
        depth = self.teacher.config.num_hidden_layers
        measured = first_documents(self.rows, MEASURED_TOKENS)
        self.search = least_important(self.teacher, measured, depth - depth // 2, "bfloat16")
        self.layers = {"importance": self.search.remaining, "even": evenly_spaced(depth, depth // 2)}

    def measured(self, sides: Sequence[str]) -> Iterator[dict[str, list[dict[str, float]]]]:
        """Trains and measures these sides; yields the numbers so far after each seed, so that a stopped run has figures."""
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for seed in self.seeds:
            for name in sides:
                rates = [LEARNING_RATE] if SIDES[name].of_rows else SFT_LEARNING_RATES
                tried = [self.side(f"{name}-{seed}", SIDES[name], seed, rate) for rate in rates]
                found[name].append(min(tried, key=lambda one: one["bits_per_byte"]))
                print(name, seed, found[name][-1], flush=True)
            yield found

    def figures(self, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
        """What is recorded. found: of every side, the numbers of every seed."""
        teacher_bits = self.teacher_bits
        of = {name: {what: [each[what] for each in seeds] for what in seeds[0]} for name, seeds in found.items()}
        bits, own = ({name: each[what] for name, each in of.items() if what in each} for what in ("bits_per_byte", "own_kl"))
        seeds = range(len(found["sft"]))

        def share(better: str, worse: str) -> list[float]:
            return mean_and_range([(bits[worse][i] - bits[better][i]) / (bits[worse][i] - teacher_bits) for i in seeds])

        return {
            "advantage_kept": share("distilled", "sft"),
            "importance_gain": share("distilled", "even"),
            "on_policy_gain": mean_and_range(
                [1 - own["then_on_policy"][i] / min(own["distilled"][i], own["on_policy"][i]) for i in seeds]
            ),
            "teacher_bits": round(teacher_bits, 4),
            "sides": of,
            "layers": self.layers,
            "loss_after_removal": [round(gone.loss, 3) for gone in self.search.removed],
            "steps": self.steps,
            "tokens_per_step": TOKENS_PER_STEP,
            "on_policy": ON_POLICY.model_dump(include={"share", "after", "beta"}),
            "held_out_rows": len(self.held_out),
            "prompts": len(self.prompts),
        }

    def side(self, name: str, side: Side, seed: int, learning_rate: float) -> dict[str, float]:
        """Trains a student and measures it."""
        settings, layers = self.settings(seed, learning_rate), self.layers[side.layers]
        student = make_student(self.teacher, layers).requires_grad_(True)
        plan, loss = PackedPlan(self.rows, settings), next_token_loss
        work = self.folder / name
        if side.of_rows is not None:
            loss = distillation_loss(
                self.teacher, side.of_rows, None if side.sampled is None else Divergence(beta=side.sampled.beta)
            )
        if side.sampled is not None:
            plan = OnPolicyPlan(plan, InProcessEngine(student, self.ends, side.sampled), side.sampled, MAX_LENGTH)
        result = train(student, plan, loss, settings, work / ".work", Progress(), "student")
        shutil.rmtree(work, ignore_errors=True)
        return {
            "bits_per_byte": round(self.bits_per_byte(student), 4),
            "learning_rate": learning_rate,
            "tokens_per_s": round(result.tokens_per_second, 1),
            **({"own_kl": round(self.own_kl(student), 4)} if side.own else {}),
        }

    def settings(self, seed: int, learning_rate: float) -> StudentSettings:
        """Of every training."""
        return StudentSettings(
            steps=self.steps,
            learning_rate=learning_rate,
            tokens_per_step=TOKENS_PER_STEP,
            max_length=MAX_LENGTH,
            seed=seed,
            warmup_share=0.05,
            choose_layers="even",
        ).resolved()

    def bits_per_byte(self, model: PreTrainedModel) -> float:
        """Of the held-out answers."""
        rows = held_out_loss(model, self.held_out, precision="bfloat16")
        return sum(row.nll_sum for row in rows) / math.log(2) / self.bytes

    @torch.no_grad()
    def own_kl(self, student: PreTrainedModel) -> float:
        """KL(student || teacher) in nats a token along the student's own answers to held-out prompts."""
        sampler = InProcessEngine(student, self.ends, ON_POLICY)
        answers = sampler([prompt for _, prompt in self.prompts], [row_id for row_id, _ in self.prompts], 0)
        documents = [
            answered(row_id, np.array(prompt), answer) for (row_id, prompt), answer in zip(self.prompts, answers, strict=True)
        ]
        loss = distillation_loss(self.teacher, Divergence(), Divergence(beta=1.0))
        student.eval()
        told = [loss(student, batch).metrics["sampled_kl"] for batch in to_batches(documents, 4_096, SampledBatch)]
        return sum(float(each.sum) for each in told) / sum(float(each.count) for each in told)


if __name__ == "__main__":
    main()
