"""Runs that are killed, and what their checkpoints cost.

    python -m benchmarks.resume            # 10 kills of a 200-step run, then 58M parameters saved and not: minutes
    python -m benchmarks.resume --quick    # 4 kills of a 100-step run, 6M parameters; nothing is recorded

1. A run of a tiny Qwen3 on random documents is killed with SIGKILL at random moments and started again by a process that
   knows nothing but its folder, until it ends: half of the moments are uniform over the time that is left of the run, half
   fall while a checkpoint is being written. Its weights are compared with those of a run that nobody disturbed.
   A kill loses the steps after the newest whole checkpoint: one interval at most, and what the run did while the next
   checkpoint was being written (two intervals where writing takes longer than one): steps_lost gives the most,
   seconds_lost_share the time as a share of an interval's.
2. The same 50 steps (the default interval) with and without a save, in turn, in one process: one interval of every pair
   begins with a save. save_overhead is the median over the pairs of how much longer the one with the save took, all counted:
   looking at the tensors, copying what was not written in time, and the core that the writing takes from the step.

Figures: kills, during_saves (kills that left a torn checkpoint), identical, steps_lost, checkpoint_every,
seconds_lost_share; save_overhead, and per save its bytes, its seconds, and the seconds in which the step stood still.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file

from benchmarks.parallel import documents, tiny
from benchmarks.record import record
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import Progress
from model_ops.objectives.sft import next_token_loss
from model_ops.parallel.world import World
from model_ops.training.checkpoint import Checkpoints
from model_ops.training.optimizers import build_optimizer
from model_ops.training.settings import TrainingSettings
from model_ops.training.step import optimizer_step
from model_ops.training.trainer import train

INTERVAL = 10
"""Steps between checkpoints of the run that is killed."""
OVERHEAD_BOUND = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resume", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer kills, a smaller model; nothing is recorded")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    given = parser.parse_args()
    quick = given.quick
    torch.set_num_threads(1)  # forks below: no threads of OpenMP may be there to be missed
    with tempfile.TemporaryDirectory(prefix="millrace-resume-") as folder:
        figures = kills(Path(folder), 4 if quick else 10, 100 if quick else 200, random.Random(given.seed))
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
        sizes = {"hidden": 256, "layers": 4, "vocab": 8_000} if quick else {"hidden": 512, "layers": 12, "vocab": 40_000}
        figures |= overhead(Path(folder) / "overhead", sizes, tokens=256 if quick else 512, steps=50, pairs=3)
    record("resume", figures, keep=not quick)
    return int(not figures["identical"] or (not quick and figures["save_overhead"] > OVERHEAD_BOUND))


def kills(folder: Path, count: int, steps: int, moments: random.Random) -> dict[str, object]:
    """Kills a run `count` times and compares what it ends with."""
    began_s = time.monotonic()
    _ended(_start(folder / "undisturbed", steps))
    step_s = (time.monotonic() - began_s) / steps
    work = folder / "killed"
    lost, lost_s, torn = [], [], 0
    for kill in range(count):
        child, left = _start(work, steps), (steps - _done(work)) * step_s
        if kill % 2:
            _until_a_save_is_being_written(work, child)
            time.sleep(moments.uniform(0, 0.01))
        else:
            time.sleep(moments.uniform(0, left / (count - kill)))
        os.kill(child, signal.SIGKILL)
        if os.waitpid(child, 0)[1] == 0:
            raise RuntimeError(f"kill {kill} came after the run's end; the run is too short for {count} kills")
        folders = list((work / ".work" / "checkpoints").glob("step-*"))
        torn += any(not (path / "state.json").exists() for path in folders)
        whole = max((int(path.name.removeprefix("step-")) for path in folders if (path / "state.json").exists()), default=0)
        lost.append(_done(work) - whole)
        lost_s.append(lost[-1] * step_s)
        print(f"kill {kill + 1}: after step {_done(work)}, {lost[-1]} steps lost", flush=True)
    _ended(_start(work, steps))
    one, other = (load_file(folder / name / "final.safetensors") for name in ("undisturbed", "killed"))
    identical = one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
    return {
        "kills": count,
        "during_saves": torn,
        "identical": identical,
        "steps_lost": max(lost),
        "checkpoint_every": INTERVAL,
        "seconds_lost_share": round(max(lost_s) / (INTERVAL * step_s), 3),
    }


def overhead(work: Path, sizes: dict[str, int], tokens: int, steps: int, pairs: int) -> dict[str, object]:
    """What a save adds to `steps` steps, over `pairs` of intervals with and without one."""
    settings = TrainingSettings(
        steps=1_000, learning_rate=1e-4, tokens_per_step=tokens, max_length=tokens // 2, checkpoint_every=1
    ).resolved()
    model = tiny("qwen3", **sizes)
    world, optimizer = World.alone(torch.device("cpu")), build_optimizer(model, settings)
    plan = PackedPlan(documents(400, tokens // 4, sizes["vocab"]), settings)
    run = {"phase": "resume", "settings": {}, "steps": 1_000_000}
    checkpoints = Checkpoints(work, model, optimizer, run, settings, world, Progress())
    done, stood, writing = 0, [], []

    def interval(saves: bool) -> float:
        nonlocal done
        began_s = time.monotonic()
        if saves:
            checkpoints.after_step(done, {})
            stood.append(time.monotonic() - began_s)
        for _ in range(steps):
            optimizer_step(model, plan.step(done % len(plan)), next_token_loss, optimizer, settings, world, "step")
            done += 1
        checkpoints.wait()
        return time.monotonic() - began_s

    interval(saves=False)
    ratios = []
    for pair in range(pairs):
        took = {saves: interval(saves) for saves in ((True, False) if pair % 2 == 0 else (False, True))}
        ratios.append(took[True] / took[False] - 1)
        print(f"pair {pair + 1}: {took[True]:.2f} s with a save, {took[False]:.2f} s without", flush=True)
    began_s = time.monotonic()
    checkpoints.after_step(done, {})
    checkpoints.wait()
    writing.append(time.monotonic() - began_s)
    saved = max((work / "checkpoints").glob("step-*"))
    return {
        "save_overhead": round(median(ratios), 4),
        "overheads": [round(ratio, 4) for ratio in ratios],
        "interval_steps": steps,
        "step_seconds": round(took[False] / steps, 4),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "saved_mb": round(sum(path.stat().st_size for path in saved.iterdir()) / 1e6, 1),
        "write_seconds_alone": round(writing[0], 3),
        "step_stood_still_s": round(median(stood), 4),
    }


def _start(folder: Path, steps: int) -> int:
    """A fork of this process that trains in `folder` and leaves the weights there."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        _train(folder, steps)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)  # a fork must not go on as its parent


def _train(folder: Path, steps: int) -> None:
    settings = TrainingSettings(
        steps=steps, learning_rate=1e-3, tokens_per_step=1_024, max_length=128, precision="float32", checkpoint_every=INTERVAL
    ).resolved()
    model = tiny("qwen3", hidden=128, layers=4, vocab=512)
    train(
        model, PackedPlan(documents(400, 128, 512), settings), next_token_loss, settings, folder / ".work", Progress(), "resume"
    )
    save_file({name: value.detach().contiguous() for name, value in model.named_parameters()}, folder / "final.safetensors")


def _done(folder: Path) -> int:
    """Steps that were finished, by the log."""
    path = folder / "metrics.jsonl"
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return json.loads(whole[-1])["step"] if whole else 0


def _until_a_save_is_being_written(folder: Path, child: int) -> None:
    known = {path for path in (folder / ".work" / "checkpoints").glob("step-*") if not (path / "state.json").exists()}
    while not any(
        path not in known and not (path / "state.json").exists() for path in (folder / ".work" / "checkpoints").glob("step-*")
    ):
        if os.waitpid(child, os.WNOHANG)[0]:
            raise RuntimeError("the run ended before a checkpoint was seen being written")
        time.sleep(0.0005)


def _ended(child: int) -> None:
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError(f"a run that nobody killed ended with {code}; what it said is above")


if __name__ == "__main__":
    sys.exit(main())
