"""What it is worth to train a drafter for one workload: against one trained on the mix of all, with the same compute.

    python -m benchmarks.drafter_workload --folder FOLDER      # 15 minutes on 2 cores after drafter_losses
    python -m benchmarks.drafter_workload --quick              # a few steps of each: the figures mean nothing

EAGLE-3, LK-lambda, K = 5, target ../shared/models/house. The generic drafter learns from answers of all three workloads, each
special one from one workload's, in as many steps of as many tokens; each counts its own draft vocabulary. All are measured on
held-out prompts of every workload, neither target nor drafter has seen them (`benchmarks.drafter_cell`).

gain: tau of the special drafter over the generic one's on its own workload, less 1, at T = 1, the mean over the three
workloads; `gains` has each, at both temperatures, with its 95 % interval over prompts. loss_elsewhere: what special drafters
lose on the other two workloads, the mean in the same way (0.3: tau is 30 % lower); `elsewhere` has each pair.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.drafter_cell import Cell, Found, cell_arguments, measured, size_of, tau
from benchmarks.house import WORKLOADS, House, K
from benchmarks.record import record
from model_ops.drafting.acceptance import paired_gain

GENERIC = Cell("eagle3", "lk_lambda", 0)
SPECIAL = {workload: Cell("eagle3", "lk_lambda", 0, (workload,)) for workload in WORKLOADS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_workload", description=__doc__.splitlines()[0])
    cell_arguments(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="drafter-workload-") as scratch:
        house = House(given.shared, given.folder or Path(scratch))
        found = measured([GENERIC, *SPECIAL.values()], size_of(given), house, given.side_by_side)
        record("drafter_workload", figures(found), keep=not given.quick)


def figures(found: dict[Cell, Found]) -> dict[str, Any]:
    def against_generic(special: str, tested: str, way: str) -> list[float]:
        both = [[row for row in found[cell].rows[way] if row.workload == tested] for cell in (GENERIC, SPECIAL[special])]
        gain = paired_gain([both[0]], [both[1]])
        return [round(gain.share, 4), round(gain.low, 4), round(gain.high, 4)]

    gains = {workload: {way: against_generic(workload, workload, way) for way in ("t0", "t1")} for workload in WORKLOADS}
    elsewhere = {
        special: {
            tested: {way: against_generic(special, tested, way) for way in ("t0", "t1")}
            for tested in WORKLOADS
            if tested != special
        }
        for special in WORKLOADS
    }
    lost = [-by_way["t1"][0] for by_tested in elsewhere.values() for by_way in by_tested.values()]
    return {
        "gain": round(sum(by_way["t1"][0] for by_way in gains.values()) / len(gains), 4),
        "loss_elsewhere": round(sum(lost) / len(lost), 4),
        "gains": gains,
        "elsewhere": elsewhere,
        "tau": {
            name: {tested: {way: tau(found[cell].rows[way], tested) for way in ("t0", "t1")} for tested in WORKLOADS}
            for name, cell in {"generic": GENERIC, **SPECIAL}.items()
        },
        "training": {name: found[cell].training for name, cell in {"generic": GENERIC, **SPECIAL}.items()},
        "k": K,
    }


if __name__ == "__main__":
    main()
