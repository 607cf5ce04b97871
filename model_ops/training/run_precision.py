"""The precision of a training run: one for all its processes and restarts.

    settings = with_run_precision(settings, world, job.output / ".work", progress)     # settings.precision is now concrete

`precision: auto` is decided when the run begins and kept in work/precision.json: a run that continues on another machine keeps
its precision. Processes on unlike machines take float32 as soon as one of them is faster with it: emulated bfloat16 costs
more than a processor's bfloat16 units gain.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from model_ops.atomic_files import write_json
from model_ops.parallel.world import World
from model_ops.precision import decided
from model_ops.progress import Progress
from model_ops.training.settings import TrainingSettings

Kind = TypeVar("Kind", bound=TrainingSettings)


def with_run_precision(settings: Kind, world: World, work: Path, progress: Progress) -> Kind:
    """The settings with the precision to compute in. Every process of `world` calls this; the first one knows `work`."""
    if settings.precision != "auto":
        if world.leads and settings.precision == "bfloat16" and decided("auto", world.device) == "float32":
            progress.event("note", message="this machine multiplies bfloat16 slower than float32: leave precision out, "
                           "or set precision: float32")
        return settings
    file, own, kept = work / "precision.json", decided("auto", world.device), None
    if world.leads and file.exists():
        kept = json.loads(file.read_text())["precision"]
    found = world.gather((kept, own))
    kept, answers = found[0][0], {answer for _, answer in found}
    chosen = kept or ("bfloat16" if answers == {"bfloat16"} else "float32")
    if world.leads:
        if kept is None:
            write_json(file, {"precision": chosen})
        if kept not in (None, own):
            progress.event("note", message=f"the run continues in {kept}, as it began; this machine is faster in {own}")
        if len(answers) > 1:
            progress.event("note", message=f"the machines of this run differ in precision: all compute in {chosen}")
    return settings.model_copy(update={"precision": chosen})
