"""Resolves `precision: auto` for a job: one precision for all its processes and restarts, kept in work/precision.json. It is
float32 as soon as one process is faster with it: emulated bfloat16 costs more than another processor's units gain."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from model_ops.files import write_json
from model_ops.jobs import Progress
from model_ops.machine import AUTO, Concrete, faster_on


@contextmanager
def run_precision(work: Path, progress: Progress) -> Iterator[dict[str, Concrete]]:
    """Context manager of a job. In a group of processes each enters it, and the first one knows `work`."""
    used: dict[str, Concrete] = {}

    def of_run(device: torch.device) -> Concrete:
        if not used:
            used["precision"] = _agreed(work / "precision.json", faster_on(device), progress)
        return used["precision"]

    if dist.is_initialized():  # now, since all processes have to take part
        of_run(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    AUTO.append(of_run)
    try:
        yield used
    finally:
        AUTO.remove(of_run)


def _agreed(file: Path, own: Concrete, progress: Progress) -> Concrete:
    """The precision of all processes: what the file of the first one has, else what suits all of them. own: suits this one."""
    leads = not dist.is_initialized() or dist.get_rank() == 0
    earlier: Concrete | None = json.loads(file.read_text())["precision"] if leads and file.exists() else None
    of_processes = [(earlier, own)]
    if dist.is_initialized():
        of_processes *= dist.get_world_size()
        dist.all_gather_object(of_processes, (earlier, own))
    earlier, answers = of_processes[0][0], {answer for _, answer in of_processes}
    chosen: Concrete = earlier or ("bfloat16" if answers == {"bfloat16"} else "float32")
    if earlier not in (None, own):
        progress.event(
            "note", message=f"precision: the run continues in {earlier}, in which it began; this machine is faster in {own}"
        )
    if len(answers) > 1:
        progress.event("note", message=f"precision: the machines of this run are not alike, so all compute in {chosen}")
    if leads and earlier is None:
        write_json(file, {"precision": chosen})
    return chosen
