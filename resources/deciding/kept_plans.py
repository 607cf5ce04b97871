"""Plans of training stages that `millrace plan` kept in the lake: predicted costs of stages that were never run.

    keep(lake, "shop", KeptPlan(stage="sft_model", tokens_per_second=12_000, device="H100", devices=8, epochs=2.0, ...))
    plan = kept_plans(lake, "shop").get("sft_model")
    plan.seconds(dataset_tokens=4_000_000)          # None where the number of tokens is unknown
    plan.says                                       # "sft_model by the planner (about 12,000 tokens/s on 8 H100), ..."

A planner's speed is an estimate by the devices' peak: a run of the stage replaces it. Reading a plan reads one small file.
Machines that share a bucket share the plans; the one that was written last counts.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from model_ops.atomic_files import write_json
from resources.lake import Lake


class KeptPlan(BaseModel):
    """stage: name of the artefact. tokens_per_second: of all devices. steps, epochs: the recipe's, of which one is None."""

    stage: str
    tokens_per_second: float = Field(gt=0)
    device: str
    devices: int = Field(ge=1)
    tokens_per_step: int = Field(ge=1)
    steps: int | None = None
    epochs: float | None = None
    at: datetime

    def seconds(self, dataset_tokens: float | None) -> float | None:
        """Seconds of the training. dataset_tokens: tokens of its training rows; None if unknown."""
        if self.steps is not None:
            return self.steps * self.tokens_per_step / self.tokens_per_second
        if self.epochs is None or dataset_tokens is None:
            return None
        return self.epochs * dataset_tokens / self.tokens_per_second

    @property
    def says(self) -> str:
        """Where a cost comes from, for sentences."""
        return (f"{self.stage} by the planner (about {self.tokens_per_second:,.0f} tokens/s on {self.devices} {self.device}), "
                "no run of this stage was seen")


def keep(lake: Lake, workload: str, plan: KeptPlan) -> None:
    """Writes the plan of a stage in place of an earlier one. Raises OSError where the lake cannot be written to (S3Error for
    its bucket), and Changed where another machine of the bucket keeps one at this moment."""
    place = _folder(lake, workload) / f"{plan.stage}.json"
    lake.mirror.pull_folder(place.parent)  # the bucket takes a file in place of the one that was seen last
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, plan.model_dump(mode="json"))
    lake.mirror.publish(place)


def kept_plans(lake: Lake, workload: str) -> dict[str, KeptPlan]:
    """Plans by artefact. A file that cannot be read counts as none: then the stage's cost is unknown."""
    found, folder = {}, _folder(lake, workload)
    lake.mirror.pull_folder(folder)
    for path in sorted(folder.glob("*.json")):
        try:
            plan = KeptPlan.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, ValidationError):
            continue
        found[plan.stage] = plan
    return found


def _folder(lake: Lake, workload: str) -> Path:
    return lake.root / "plans" / workload
