"""Times the demo on its real model, and records what base and release answer right of the mail that nobody trained on.

    python -m benchmarks.demo                 # a fresh lake in a temporary folder: about 15 minutes on 2 cores
    python -m benchmarks.demo --lake DIR      # figures of a finished demo

Figures: seconds and peak memory per stage, rows by fate, scores with intervals, held-out losses, recovery of the int8 model,
and acceptance lengths of the drafter and the lookups on held-out prompts.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.record import record
from model_ops.evaluation import find, measurements_of
from pipelines.demo import REAL, run_demo
from resources.lake import LakeLayout
from resources.releasing import summarise

ACCEPTANCE = ("drafter", "num_speculative_tokens", "sampling", "temperature", "tau", "tau_low", "tau_high", "prompts", "tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lake", type=Path, help="a finished demo's lake; a fresh demo is run where it is left out")
    given = parser.parse_args().lake
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        place = given or Path(folder) / "lake"
        if given is None and (code := run_demo(Console(), place, approved=True)):
            raise SystemExit(code)
        lake = LakeLayout.open(place, create=False)
        summary = summarise(lake, REAL.workload)
        run = json.loads((lake.root / "demo-run.json").read_text())
    evaluation = summary.evaluation
    measurements = measurements_of(evaluation)
    scores = {of: find(measurements, "accuracy", of=of) for of in ("target", "reference", "base")}
    record(
        "demo",
        {
            "seconds": {stage: round(seconds, 1) for stage, seconds in run["seconds"].items()},
            "seconds_in_all": round(sum(run["seconds"].values()), 1),
            "budget": {stage: round(seconds) for stage, seconds in run["predicted"].items()},
            "share_of_steps": run["share_of_steps"],
            "peak_memory_mb": round(run["peak_memory_mb"]),
            "rows": {
                "read": summary.records.read,
                "kept": summary.records.rows,
                "dropped": summary.records.dropped,
                "quarantined": summary.records.quarantined,
            },
            "score": {of: [each.value, each.low, each.high] for of, each in scores.items()},
            "items": scores["target"].n,
            "loss": {name: round(model["loss"], 4) for name, model in evaluation["models"].items()},
            "recovery": round(find(measurements, "recovery").value, 4),
            "acceptance": [
                {key: each[key] for key in ACCEPTANCE} for each in evaluation["acceptance"] if each["drafter"] != "none"
            ],
        },
        keep=True,
    )


if __name__ == "__main__":
    main()
