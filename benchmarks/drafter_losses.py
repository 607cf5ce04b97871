"""Acceptance length on held-out prompts for each loss, and for drafters that need no training.

    python -m benchmarks.drafter_losses --folder FOLDER        # hours on 2 cores; continues where it stopped
    python -m benchmarks.drafter_losses --folder FOLDER --steps 250 --precision float32        # as it was recorded: 90 minutes
    python -m benchmarks.drafter_losses --quick                # a few steps of each: the figures mean nothing

Target ../shared/models/house. Every training sees the same answers (all three workloads; one and a half epochs in 373 steps of
2,048 tokens, where --steps is open), the same hidden states and as many steps (`benchmarks.drafter_cell`); three seeds decide
order and first weights, one for LK-alpha. K = 5, chain, exact decoder, the same held-out prompts for all; tau is over all of
them, the mean of the seeds (at T = 0 of the first; `by_workload` has each). ngram and suffix as in evaluation_report: suffix
begins with the training answers, suffix_cold with nothing.

lk_gain_t1: tau of LK-lambda over tau of KL at T = 1, less 1; `lk_gain_t1_interval` its 95 % interval over prompts, the same
for both losses, and seeds, and `lk_gain_t1_seeds` the gain of each seed with its interval over
prompts. Drafts are drawn from the drafter's own distribution there; `t1_greedy` in `tau` is what is left of it where a server
drafts its likeliest token at any temperature.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.drafter_cell import Cell, Found, Size, cell_arguments, decoded, measured, size_of, tau
from benchmarks.house import OPTIMIZER, WORKLOADS, House, K
from benchmarks.record import record
from model_ops.drafting.acceptance import SEED_INTERVALS, AcceptanceRow, Gain, paired_gain
from model_ops.drafting.measure_acceptance import baselines

UNTRAINED = "untrained"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_losses", description=__doc__.splitlines()[0])
    cell_arguments(parser)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each loss")
    given = parser.parse_args()
    size, seeds = size_of(given), 1 if given.quick else given.seeds
    with tempfile.TemporaryDirectory(prefix="drafter-losses-") as scratch:
        house = House(given.shared, given.folder or Path(scratch))
        cells = [Cell("eagle3", loss, seed) for seed in range(seeds) for loss in ("kl", "lk_lambda")]
        cells.append(Cell("eagle3", "lk_alpha", 0))
        found = measured(cells, size, house, given.side_by_side)
        record("drafter_losses", figures(found, untrained(house, size), size), keep=not given.quick)


def untrained(house: House, size: Size) -> dict[str, dict[str, list[AcceptanceRow]]]:
    """Rows of the look-up drafters, by drafter and temperature."""
    answers = [row.ids[row.prompt_tokens :] for row in house.rows(share=size.share)]
    found: dict[str, dict[str, list[AcceptanceRow]]] = {}
    for temperature in (0.0, 1.0):
        cold = baselines()
        drafters = {"ngram": cold["ngram"], "suffix_cold": cold["suffix"], "suffix": baselines(answers)["suffix"]}
        for row in decoded(house, drafters, temperature, size):
            found.setdefault(row.drafter, {}).setdefault(f"t{temperature:g}", []).append(row)
    return found


def figures(found: dict[Cell, Found], untrained: dict[str, dict[str, list[AcceptanceRow]]], size: Size) -> dict[str, Any]:
    runs: dict[str, dict[str, list[dict[str, list[AcceptanceRow]]]]] = {
        drafter: {UNTRAINED: [by_temperature]} for drafter, by_temperature in untrained.items()
    }
    for cell, said in found.items():
        runs.setdefault(cell.drafter, {}).setdefault(cell.loss, []).append(said.rows)
    gains = {
        drafter: (
            paired_gain(*_kl_and_lk(by_loss)),
            [paired_gain([kl], [lk]) for kl, lk in zip(*_kl_and_lk(by_loss), strict=True)],
        )
        for drafter, by_loss in runs.items()
        if "kl" in by_loss
    }
    return {
        "tau": {drafter: {loss: taus(seeds) for loss, seeds in by_loss.items()} for drafter, by_loss in runs.items()},
        "lk_gain_t1": {drafter: round(whole.share, 4) for drafter, (whole, _) in gains.items()},
        "lk_gain_t1_interval": {drafter: _rounded(whole)[1:] for drafter, (whole, _) in gains.items()},
        "lk_gain_t1_seeds": {drafter: [_rounded(each) for each in seeds] for drafter, (_, seeds) in gains.items()},
        "by_workload": {
            drafter: {loss: {workload: taus(seeds, workload) for workload in WORKLOADS} for loss, seeds in by_loss.items()}
            for drafter, by_loss in runs.items()
        },
        "training": {f"{cell.drafter} {cell.loss} {cell.seed}": said.training for cell, said in found.items()},
        "prompts": len(untrained["ngram"]["t1"]),
        "k": K,
        "max_new_tokens": size.max_new_tokens,
        "optimizer": OPTIMIZER,
        "intervals": SEED_INTERVALS,
    }


def taus(seeds: Sequence[dict[str, list[AcceptanceRow]]], workload: str | None = None) -> dict[str, float]:
    """The mean over seeds of tau, for each way of decoding that they were measured in."""
    ways = {way: [tau(found[way], workload) for found in seeds if way in found] for way in seeds[0]}
    return {way: round(sum(each) / len(each), 4) for way, each in sorted(ways.items())}


def _kl_and_lk(by_loss: dict[str, list[dict[str, list[AcceptanceRow]]]]) -> tuple[list[list[AcceptanceRow]], ...]:
    return tuple([found["t1"] for found in by_loss[loss]] for loss in ("kl", "lk_lambda"))


def _rounded(gain: Gain) -> list[float]:
    return [round(gain.share, 4), round(gain.low, 4), round(gain.high, 4)]


if __name__ == "__main__":
    main()
