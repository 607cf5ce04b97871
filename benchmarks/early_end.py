"""What a drafter's training saves by ending early, what that costs in acceptance, and whether it ended where it should.

    python -m benchmarks.early_end [--folder DIR] [--threads N]     # 9 minutes of one core
    python -m benchmarks.early_end --quick                          # a few steps: the figures mean nothing

An EAGLE-3 drafter of the house model is trained on the model's own answers. The first training goes to its end, because it
does not know yet what its steps cost. The others know what the first one measured, and differ in the endpoint's traffic only.
The measurements of the whole training say for any traffic where the rule ends, because a training that ends early has the same
first steps. So TRAFFIC lists many endpoints, and three of them are trained: the first, the last, and the one whose training
ends nearest to the middle between them.

Device seconds: the processor seconds a step of the whole training (evaluations included) count for all trainings, so other work
on the machine favours none. An endpoint decodes TOKENS_PER_SECOND with the whole training's drafter, for DAYS days.

trained: of each of the three: steps, seconds, what it saves and loses beside the whole training, and `tau` in the exact decoder
on held-out prompts (T = 1). by_requests: for all of TRAFFIC the end, the best end in hindsight, and regret_share = (net value
of the best end - net value of this end) / net value of the best end (benchmarks.early_end_hindsight). The acceptance length of
an early end is the whole training's measurement at that step plus the lift of the learning rate's fall, which the trainings
that ended early measured (linear between them). decided: the step after which the rule lets the learning rate fall;
last_paying: the step at the end of the last interval that paid, by the rule's formula and the whole training's measurements.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.early_end_hindsight import TAU, Line, hindsight, last_paying, lift_between, possible_ends, replayed
from benchmarks.house import OPTIMIZER, WORKLOADS, House, mixed
from benchmarks.record import record
from model_ops.drafting.acceptance import summarize
from model_ops.machine.torch_environment import set_torch_environment
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.eagle3.architecture import Eagle3Settings
from model_ops.speculators.eagle3.config import default_layer_ids
from model_ops.training.early_end_settings import EarlyEndOfDrafter
from model_ops.training.learning_curve import DecodingWorth
from model_ops.training.trainer import TrainingResult
from model_ops.training.validation import plan_validation

TRAFFIC = (5, 7, 10, 12, 15, 17, 20, 25, 30, 40, 50, 70, 100, 200, 500, 1_000)
"""Requests a day."""
TOKENS_PER_SECOND = 110.0
"""At which vLLM decodes answers of this model with a drafter, one greedy request at a time (results/drafter_speed.json)."""
DAYS = 30.0
"""That the drafter serves: what the rule takes where a recipe says nothing else."""
K = 3


@dataclass(frozen=True)
class Size:
    """share: every so many-th answer is trained on. held_out: answers of an evaluation. prompts: for the exact decoder."""

    share: int = 2
    steps: int = 240
    evaluations: int = 12
    tokens_per_step: int = 1_024
    held_out: int = 32
    prompts: int = 60
    max_new_tokens: int = 96


QUICK = Size(share=40, steps=20, evaluations=10, tokens_per_step=512, held_out=8, prompts=6, max_new_tokens=24)


@dataclass(frozen=True)
class Trained:
    """A drafter, its training's result, and the lines of its log. cpu_s: processor seconds of the training."""

    model: DraftModel
    result: TrainingResult
    log: list[Line]
    cpu_s: float


class Trainings:
    """Trainings of one drafter that differ in the rule only."""

    def __init__(self, house: House, size: Size, scratch: Path):
        self.house, self.size, self.scratch = house, size, scratch
        self.rows, self.held_out = house.rows(share=size.share), house.held_out_rows(size.held_out)
        self.every = plan_validation(size.steps, self.settings(self.rule()), self.rule()).every

    def rule(self, **known: float) -> EarlyEndOfDrafter:
        return EarlyEndOfDrafter(enabled=True, evaluations=self.size.evaluations, serves_days=DAYS, **known)

    def settings(self, rule: EarlyEndOfDrafter) -> Eagle3Settings:
        return Eagle3Settings(
            steps=self.size.steps,
            tokens_per_step=self.size.tokens_per_step,
            max_length=2_048,
            num_speculative_tokens=K,
            ttt_steps=K,
            **OPTIMIZER,
            checkpoint_every=100_000,
            early_end=rule,
        ).resolved()

    def train(self, name: str, rule: EarlyEndOfDrafter) -> Trained:
        """Trains once. The target's hidden states are computed before its clock runs."""
        layer_ids = default_layer_ids(self.house.runner.config.num_hidden_layers)
        for rows in (self.rows, self.held_out):
            self.house.states(rows, layer_ids)
        folder, began_s = self.scratch / name, time.process_time()
        model, result = self.house.trained(self.rows, self.settings(rule), folder / ".work", held_out=self.held_out)
        cpu_s = time.process_time() - began_s
        log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        print(f"{name}: {result.steps} steps, {cpu_s:.0f} s of a processor, {result.early_end}", flush=True)
        return Trained(model, result, log, cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.early_end", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where answers and hidden states are kept; open: nowhere")
    parser.add_argument(
        "--shared", type=Path, default=Path(__file__).parents[2] / "shared", help="holds models/house and data/"
    )
    parser.add_argument("--quick", action="store_true", help="a few steps: the figures mean nothing")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    set_torch_environment()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory(prefix="early-end-") as scratch:
        house = House(given.shared, given.folder or Path(scratch))
        trainings = Trainings(house, QUICK if given.quick else Size(), Path(scratch))
        record("early_end", figures(trainings), keep=not given.quick)


def figures(trainings: Trainings) -> dict[str, Any]:
    """Trains the drafters and measures each. Raises RuntimeError if a training ends where it should not."""
    size, every = trainings.size, trainings.every
    whole = trainings.train("whole", trainings.rule())
    seconds_a_step = whole.cpu_s / whole.result.steps
    answer_tokens = sum(row.window for row in trainings.rows) / len(trainings.rows)
    known = {
        "trained_tokens_per_second": whole.result.tokens / whole.cpu_s,
        "decode_hours_at_tau": whole.result.validation[TAU],
    }

    def hours(requests: int) -> float:
        return requests * answer_tokens / TOKENS_PER_SECOND / 3600

    rules = {requests: trainings.rule(decode_hours_per_day=hours(requests), **known) for requests in TRAFFIC}
    settings = trainings.settings(trainings.rule())
    ended = {requests: replayed(whole.log, settings, rule, every).last for requests, rule in rules.items()}
    runs = {}
    for requests in _three(ended):
        runs[requests] = trainings.train(f"{requests} requests a day", rules[requests])
        if runs[requests].result.steps != ended[requests]:
            raise RuntimeError(
                f"with {requests} requests a day {runs[requests].result.steps} steps were trained; by "
                f"the whole training's measurements it is {ended[requests]}"
            )
    by_curve = possible_ends(whole.log, settings, trainings.rule(), every)
    lifts = {
        end.decided: run.result.validation[TAU] - end.tau
        for run in runs.values()
        for end in by_curve[:-1]
        if end.steps == run.result.steps
    }
    ends = possible_ends(whole.log, settings, trainings.rule(), every, lift_between(lifts)) if lifts else by_curve

    worth = {requests: DecodingWorth(hours(requests), DAYS, known["decode_hours_at_tau"]) for requests in TRAFFIC}
    later = {requests: hindsight(ends, ended[requests], worth[requests], seconds_a_step) for requests in TRAFFIC}
    paid = {
        requests: last_paying(whole.log, ends, every, settings.decay_share, worth[requests], seconds_a_step)
        for requests in TRAFFIC
    }
    decided = {end.steps: end.decided for end in ends}
    of_the_whole = _measured(trainings.house, whole, size)
    return {
        "regret_share": {str(requests): _rounded(later[requests].regret_share) for requests in runs},
        "seconds_saved_share": {str(requests): round(1 - run.result.steps / size.steps, 4) for requests, run in runs.items()},
        "worst_regret_share": _rounded(
            max((found.regret_share for found in later.values() if found.regret_share is not None), default=None)
        ),
        "whole": {
            "steps": whole.result.steps,
            "seconds": round(whole.cpu_s, 1),
            "tokens": whole.result.tokens,
            "seconds_a_step": round(seconds_a_step, 4),
            "validation_tau": round(whole.result.validation[TAU], 4),
            "tau": of_the_whole,
            "curve": {str(line["step"]): round(line[TAU], 4) for line in whole.log if TAU in line},
        },
        "trained": {
            str(requests): {
                "steps": run.result.steps,
                "seconds": round(run.result.steps * seconds_a_step, 1),
                "seconds_saved": round((size.steps - run.result.steps) * seconds_a_step, 1),
                "validation_tau": round(run.result.validation[TAU], 4),
                "validation_tau_lost": round(whole.result.validation[TAU] - run.result.validation[TAU], 4),
                "tau": _measured(trainings.house, run, size),
                "says": run.result.early_end,
            }
            for requests, run in runs.items()
        },
        "lift_of_the_fall": {str(decided): round(lift, 4) for decided, lift in sorted(lifts.items())},
        "by_requests": {
            str(requests): {
                "ended_at": found.ended_at,
                "best_end": found.best_end,
                "decided": decided[found.ended_at],
                "last_paying": paid[requests],
                "net_s": round(found.net_s, 1),
                "best_net_s": round(found.best_net_s, 1),
                "regret_s": round(found.regret_s, 1),
                "regret_share": _rounded(found.regret_share),
            }
            for requests, found in later.items()
        },
        "possible_ends": [end.steps for end in ends],
        "every": every,
        "answer_tokens": round(answer_tokens, 1),
        "tokens_per_second": TOKENS_PER_SECOND,
        "days": DAYS,
        "k": K,
        "rows": len(trainings.rows),
        "held_out": len(trainings.held_out),
        "prompts": size.prompts,
    }


def _three(ended: dict[int, int]) -> list[int]:
    """The least and the most traffic, and the one whose training ends nearest to the middle between them."""
    few, many = min(ended), max(ended)
    middle = min(ended, key=lambda requests: abs(2 * ended[requests] - ended[few] - ended[many]))
    return sorted({few, middle, many})


def _measured(house: House, run: Trained, size: Size) -> dict[str, float]:
    """Acceptance length on held-out prompts in the exact decoder, at T = 1, with its 95 % interval."""
    prompts = mixed({workload: house.prompts[workload] for workload in WORKLOADS}, size.prompts)
    rows = house.measured(
        {"eagle3": run.model.drafter()}, prompts, 1.0, num_speculative_tokens=K, max_new_tokens=size.max_new_tokens
    )
    return {name: round(value, 4) for name, value in summarize(rows).items() if name in ("tau", "tau_low", "tau_high")}


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


if __name__ == "__main__":
    main()
