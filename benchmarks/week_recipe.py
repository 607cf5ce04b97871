"""The recipe of a simulated week, and how large the week is.

write_recipe(path, size, base_model, captured, first_day)
"""

from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import yaml

from benchmarks.house import OPTIMIZER

WORKLOAD = "house-chat"
RUNS_PER_WEEK, DEVICE_HOURS_PER_WEEK = 3, 0.5
REQUESTS_PER_DAY = 20_000
"""Of the endpoint that the traffic is a sample of: by its own hundred requests a day no training would ever pay back."""


@dataclass(frozen=True)
class Size:
    """days: of the week; shift, broken: on which the traffic changes, and breaks. before_days, before_rows: logged before it,
    rows a day. requests: a day. steps: of the first drafter. prompts: of the evaluation. gates: other than the default ones."""

    days: int = 7
    shift: int = 3
    broken: int = 5
    before_days: int = 28
    before_rows: int = 22
    requests: int = 40
    steps: int = 60
    prompts: int = 80
    gates: dict[str, float | None] = field(default_factory=dict)


QUICK = Size(
    days=3,
    shift=2,
    broken=3,
    before_days=8,
    before_rows=24,
    requests=48,
    steps=20,
    prompts=16,
    gates={"acceptance_gain": None, "acceptance_below_champion": None},
)


def write_recipe(path: Path, size: Size, base_model: Path, captured: Path, first_day: date) -> None:
    """A drafter for a served model, retrained when it pays; a person approves."""
    recipe = {
        "workload": WORKLOAD,
        "base_model": str(base_model),
        "first_day": first_day,
        "sources": {"capture": {"uri": str(captured)}},
        "drift": {"reference_days": size.before_days, "least_sessions": 15},
        "datasets": {"sft": {"split_by": "session"}},
        "sft": {"enabled": False},
        "student": {"enabled": False},
        "quantize": {"enabled": False},
        "speculator": {
            "architecture": "eagle3",
            "num_speculative_tokens": 3,
            "steps": size.steps,
            "tokens_per_step": 1_024,
            "max_length": 1_024,
            "ttt_steps": 3,
            **OPTIMIZER,
            "answers": {"max_new_tokens": 96},
        },
        "evaluation": {"rows": 100, "prompts": size.prompts, "max_new_tokens": 48, "temperatures": [1]},
        "release": {
            "approval": "person",
            "gates": size.gates,
            "drafting": {"choose": "drafter"},
            "serving": {"gpus": 0},
            "watch": {"hours": 24},
        },
        "automation": {
            "watch_logs": True,
            "decide": {
                "enabled": True,
                "drift_trains": True,
                "least_new_rows": 100,
                "cool_down_hours": 6,
                "requests_per_day": REQUESTS_PER_DAY,
                "drafter_step_share": 1.0,
                "budget": {"runs_per_week": RUNS_PER_WEEK, "device_hours_per_week": DEVICE_HOURS_PER_WEEK},
            },
        },
    }
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
