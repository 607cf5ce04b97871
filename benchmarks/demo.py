"""Times the demo, and trains the control that its student must beat.

    python -m benchmarks.demo                 # a fresh lake in a temporary folder: about 15 minutes on 2 cores
    python -m benchmarks.demo --lake DIR      # figures of a finished demo, control included

Figures: seconds and peak memory per stage, rows by fate, held-out loss of every model, recovery of the int8 model,
acceptance length of the drafter and of an n-gram drafter on held-out prompts, the share of looping answers, and the distilled
student's loss compared with a control: the same layers, rows, steps and seed, trained by plain SFT.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.record import record
from model_ops.evaluation.measurement import find, measurements_of
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.jobs import Job
from model_ops.operations.distill_settings import StudentSettings
from pipelines.demo.demo import WORKLOAD, run_demo
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.launching.local_launcher import LocalLauncher
from resources.releasing.summary import summarise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lake", type=Path, help="a finished demo's lake; a fresh demo is run where it is left out")
    given = parser.parse_args().lake
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        place = given or Path(folder) / "lake"
        if given is None and (code := run_demo(Console(), place, approved=True)):
            raise SystemExit(code)
        lake = LakeLayout.open(place, create=False)
        summary = summarise(lake, WORKLOAD)
        run = json.loads((lake.root / "demo-run.json").read_text())
        control = _plain_sft_student(lake, Path(folder) / "control")
    evaluation = summary.evaluation
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
            "loss": {name: round(found["loss"], 4) for name, found in evaluation["models"].items()}
            | {"student_by_plain_sft": round(control, 4)},
            "recovery": round(find(measurements_of(evaluation), "recovery").value, 4),
            "num_speculative_tokens": evaluation["settings"]["num_speculative_tokens"],
            "acceptance": [
                {
                    key: found[key]
                    for key in (
                        "drafter",
                        "num_speculative_tokens",
                        "sampling",
                        "temperature",
                        "tau",
                        "tau_low",
                        "tau_high",
                        "prompts",
                        "tokens",
                        "looping_share",
                    )
                }
                for found in evaluation["acceptance"]
                if found["drafter"] != "none"
            ],
        },
        keep=True,
    )


def _plain_sft_student(lake: LakeLayout, folder: Path) -> float:
    """Held-out loss of the control: what the student becomes when it learns the labels instead of its teacher."""
    registry = Registry(lake, WORKLOAD)
    student = registry.current("model", "student_model")
    teacher = registry.directory(registry.current("model", "sft_model"))
    dataset = registry.directory(registry.current("dataset", "sft_dataset"))
    settings = StudentSettings.model_validate({**student.config, "label_weight": 1.0})
    rows = registry.current("dataset", "evaluation_report").config["rows"]
    with LocalLauncher() as launcher:
        launcher.run(
            Job(
                operation="distill",
                output=folder / "student",
                inputs={"teacher": teacher, "dataset": dataset},
                settings=settings.model_dump(mode="json"),
            )
        )
        metrics = launcher.run(
            Job(
                operation="evaluate",
                output=folder / "evaluation",
                inputs={"target": folder / "student", "dataset": dataset},
                settings=EvaluateSettings(rows=rows, prompts=1, max_new_tokens=1).model_dump(mode="json"),
            )
        )
    return metrics["loss_target"]


if __name__ == "__main__":
    main()
