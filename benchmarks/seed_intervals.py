"""Recorded intervals over few seeds, with Student's t.

    python -m benchmarks.seed_intervals            # seconds; reads benchmarks/results, writes nothing

drafter_losses and drafter_peers were recorded when intervals over three trainings a side were bootstraps, which cover 82.5 %
instead of 95 %. Their rows by prompt were not kept, so `paired_gain` cannot run again on them. Kept are these intervals and the
results of each seed. The variance of a recorded interval is that of its prompts plus (n - 1) / n of that of its n seeds, which
the results of the seeds give; the rest is that of the prompts. The interval printed here has both in full, with Student's t for
their degrees of freedom (Welch and Satterthwaite). All in logarithms of the ratio of two taus. A record that names the method
of its `intervals` has them right and is returned as it is.
"""

import json
import math
from collections.abc import Sequence

import numpy as np

from benchmarks.drafter_peers import PEERS
from benchmarks.record import RESULTS
from model_ops.drafting.acceptance import NORMAL_975, error_of, student


def with_student(share: float, low: float, high: float, seeds: Sequence[Sequence[float]], prompts: int) -> tuple[float, float]:
    """The 95 % interval of a relative gain. seeds: numbers whose logarithms' spread is that of seeds, one list a side."""
    recorded = (math.log((1 + high) / (1 + low)) / 2 / NORMAL_975) ** 2
    spread = [(float(np.var(np.log(side), ddof=1)) / len(side), len(side) - 1) for side in seeds]
    of_prompts = max(0.0, recorded - sum(variance * freedom / (freedom + 1) for variance, freedom in spread))
    error, freedom = error_of([(of_prompts, prompts - 1), *spread])
    factor = math.exp(student(freedom) * error)
    return (1 + share) / factor - 1, (1 + share) * factor - 1


def losses(figures: dict) -> dict[str, tuple[float, float]]:
    """By drafter: the gain of LK-lambda over KL at T = 1. Both losses were trained with the same seeds: gains are by seed."""
    if "intervals" in figures:
        return figures["lk_gain_t1_interval"]
    return {
        drafter: with_student(
            figures["lk_gain_t1"][drafter],
            *figures["lk_gain_t1_interval"][drafter],
            [[1 + gain for gain, _, _ in by_seed]],
            figures["prompts"],
        )
        for drafter, by_seed in figures["lk_gain_t1_seeds"].items()
    }


def peers(figures: dict) -> dict[str, dict[str, dict[str, tuple[float, float]]]]:
    """By peer, side and temperature: the gain over the peer."""
    return {
        peer: {
            side: {
                name: with_student(
                    *gain, [found["sides"][peer]["tau"][name], found["sides"][side]["tau"][name]], figures["prompts"]
                )
                if "intervals" not in figures
                else tuple(gain[1:])
                for name, gain in by_name.items()
            }
            for side, by_name in found["tau_gain"].items()
        }
        for peer, found in figures.items()
        if peer in PEERS
    }


def main() -> None:
    for name, read in (("drafter_losses", losses), ("drafter_peers", peers)):
        print(name, json.dumps(read(json.loads((RESULTS / f"{name}.json").read_text())["figures"]), indent=1))


if __name__ == "__main__":
    main()
