"""Traffic shifts to a new prompt shape: what does retraining the drafter cost if it continues the one that served?

    python -m benchmarks.drafter_drift --folder FOLDER [--steps N] [--quick]

The drafter that served was trained on math and code; then the traffic becomes an airline's tool-calling conversations. Two
drafters are trained on the new traffic's answers: one from the target alone, in all its steps, and one that goes on from
the drafter that served, in a quarter of them (continue_from: shrunk towards a new drafter as far as that costs little, see
model_ops.speculators.continue_training; new tokens of its vocabulary begin as the target's head rows).
Beside them, what the shift cost (the old drafter on the new traffic) and what a quarter of the steps gives without the old
drafter. EAGLE-3, LK-lambda, K = 5, on held-out conversations that neither target nor drafter has seen.

Last line: tau_share (continued over from scratch, the lower of T = 0 and T = 1), step_share, and the figures behind them.
tau_share_low is the lower end of its 95 % interval over prompts, both drafters on the same ones.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.house import OPTIMIZER, House, K
from benchmarks.record import record
from model_ops.drafting.acceptance import AcceptanceRow, paired_gain, summarize
from model_ops.machine.process import set_torch_environment
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.settings import SpeculatorSettings

BEFORE, AFTER = ("math", "code"), "airline"
STEP_SHARE = 0.25
TEMPERATURES = (0.0, 1.0)
FULL = {"share": 1, "prompts": 80, "steps": 200, "tokens_per_step": 2_048, "ttt_steps": K}
QUICK = {"share": 60, "prompts": 6, "steps": 8, "tokens_per_step": 1_024, "ttt_steps": 2}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_drift", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where answers and hidden states are kept; open: nowhere")
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--quick", action="store_true", help="a few steps: the figures mean nothing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, help=f"of a training from the target alone; open: {FULL['steps']}")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16", help="of training's products")
    given = parser.parse_args()
    set_torch_environment()
    torch.set_num_threads(given.threads)
    size = dict(QUICK if given.quick else FULL)
    size["steps"] = given.steps or size["steps"]
    with tempfile.TemporaryDirectory(prefix="drafter-drift-") as scratch:
        house = House(given.shared, given.folder or Path(scratch))
        record("drafter_drift", figures(house, size, given.precision, Path(scratch) / "work"), keep=not given.quick)


def figures(house: House, size: dict[str, int], precision: str, work: Path) -> dict[str, Any]:
    """Trains the drafters and measures each on the new traffic."""
    few = max(1, int(size["steps"] * STEP_SHARE))

    def settings(steps: int) -> SpeculatorSettings:
        return speculator_settings(
            steps=steps,
            tokens_per_step=size["tokens_per_step"],
            ttt_steps=size["ttt_steps"],
            **OPTIMIZER,
            precision=precision,
            warmup_share=0.05,
            max_length=2_048,
            num_speculative_tokens=K,
            step_decay=1.0,
            checkpoint_every=10 * size["steps"],
        ).resolved()

    old_rows, new_rows = house.rows(*BEFORE, share=size["share"]), house.rows(AFTER, share=size["share"])
    prompts = house.prompts[AFTER][: size["prompts"]]
    plans = {
        "served": (old_rows, size["steps"], None),
        "from_scratch": (new_rows, size["steps"], None),
        "continued": (new_rows, few, "served"),
        "from_scratch_in_few_steps": (new_rows, few, None),
    }
    models, measured, runs = {}, {}, {}
    for name, (rows, steps, goes_on_from) in plans.items():
        model, result = house.trained(rows, settings(steps), work / name, models.get(goes_on_from))
        models[name] = model
        measured[name] = {
            temperature: house.measured({"drafter": model.drafter()}, prompts, temperature) for temperature in TEMPERATURES
        }
        runs[name] = {
            "steps": result.steps,
            "seconds": round(result.seconds, 1),
            "tokens": result.tokens,
            "draft_vocab_size": len(model.target_ids),
        }
    taus = {
        name: {
            f"t{temperature:g}": {
                key: round(value, 4) for key, value in summarize(rows).items() if key in ("tau", "tau_low", "tau_high")
            }
            for temperature, rows in by_temperature.items()
        }
        for name, by_temperature in measured.items()
    }
    shares = {
        f"t{temperature:g}": tau_share(measured["continued"][temperature], measured["from_scratch"][temperature])
        for temperature in TEMPERATURES
    }
    worst = min(shares, key=lambda name: shares[name][0])
    return {
        "tau_share": round(shares[worst][0], 4),
        "step_share": round(few / size["steps"], 4),
        "tau_share_low": round(shares[worst][1], 4),
        "tau_shares": {name: [round(value, 4) for value in share] for name, share in shares.items()},
        "taus": taus,
        "runs": runs,
        "prompts": len(measured["continued"][1.0]),
        "answer_tokens": {"before": sum(row.window for row in old_rows), "after": sum(row.window for row in new_rows)},
    }


def tau_share(one: list[AcceptanceRow], other: list[AcceptanceRow]) -> tuple[float, float, float]:
    """Ratio of tau of `one` to tau of `other`, and its 95 % interval over the prompts, which both answered."""
    gain = paired_gain([other], [one])
    return 1 + gain.share, 1 + gain.low, 1 + gain.high


if __name__ == "__main__":
    main()
