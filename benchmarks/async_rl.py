"""Reinforcement fine-tuning with engines that sample meanwhile, beside sampling and learning in turns.

    python -m benchmarks.async_rl --shared ../shared                # about 35 minutes on 2 idle cores
    python -m benchmarks.async_rl --shared ../shared --quick        # one seed, few steps, two kills; nothing is recorded
    python -m benchmarks.async_rl --shared ../shared --parts kills  # of speed, judge, kills; nothing is recorded

speed: the task of benchmarks.counting_task from the same start, STEPS steps, both ways in alternating order:
`max_staleness` 0 and STALENESS, with THREADS threads in all, of which the engine takes half. judge: the same for JUDGE_STEPS
steps with a grader that waits JUDGE_S seconds for each answer, as one does that asks a server. `speed_ratio` and
`judge_speed_ratio` are seconds of all steps but the first, synchronous over asynchronous; `whole_speed_ratio` is that of all
steps, of which the first waits for the engine's process to start. `end` is the share of right greedy answers to new items,
`reward_gap` that of asynchronous less that of synchronous. `staleness` is the mean age in steps of what was learnt,
`step_seconds` how long synchronous sampling and learning take with 1 and 2 threads.

kills: KILLS times SIGKILL, to the training and its engine in turn, at random moments of one run. `lost` counts rollouts that
its log had when a kill came and lacks later, that a step lacks, or that it did not learn; `duplicated` those that it has twice
or learnt twice: a run without kills that is given the log, and so samples nothing, has to end with the same weights, else all
count. `asked_again` are answers that were graded and not in the log when a kill came.

Last line: {speed_ratio: [mean, low, high], reward_gap: [...], staleness, largest_staleness, lost, duplicated, ...}.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks.counting_task import SEEDS, Trial
from benchmarks.real_models import PROJECT, interval
from benchmarks.record import record
from model_ops.jobs import Job, Progress
from model_ops.operations import rft

THREADS, STEPS, STALENESS, JUDGE_S, JUDGE_STEPS, KILLS, KILLED_STEPS = 2, 80, 2, 0.05, 20, 20, 160
LONGEST_WAIT_S = 0.3
"""Of a kill, after two chunks: a chunk and a step take a tenth of a second, so kills come at all moments of both."""
PARTS = ("speed", "judge", "kills")
GRADES = f"""
import os, re, time
def judge(answer, columns):
    time.sleep({JUDGE_S})
    return float(re.findall("[0-9]+", answer)[-1:] == [str(columns["answer"])])
def counted(answer, columns):
    with open(os.path.join(os.path.dirname(__file__), "graded"), "a") as file:
        file.write("x\\n")
    return float(any(letter in "012345678" for letter in answer))
"""


class Race(Trial):
    """One seed of the task, learnt both ways from one start."""

    def __init__(self, house: Path, folder: Path, seed: int):
        super().__init__(house, folder, seed)
        (folder / "rewards.py").write_text(GRADES)
        self.start = self.tuned_start()
        self.prompts_folder = self.written_prompts()

    def once(self, staleness: int, threads: int = THREADS, **settings: Any) -> dict[str, Any]:
        """Seconds, share of right answers, staleness, and seconds of a step's sampling and learning (without the first)."""
        torch.set_num_threads(threads)
        given = {"max_length": 256, "seed": self.seed, **self.rewards_settings(), **settings}
        inputs, output = {"model": self.start, "prompts": self.prompts_folder}, self.folder / "rft"
        job = Job(
            operation="rft", inputs=inputs, output=output, settings={**given, "max_staleness": staleness}, threads=threads
        )
        numbers = rft.run(job, Progress())
        torch.set_num_threads(THREADS)
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][1:]
        took = [line["tokens"] / line["tokens_per_second"] for line in lines]
        waited = [line["data_wait_share"] * seconds for line, seconds in zip(lines, took, strict=True)]
        found = {name: numbers[name] for name in ("seconds", "staleness", "largest_staleness") if name in numbers}
        found |= {
            "steady": sum(took),
            "sampling": fmean(waited),
            "learning": fmean(took) - fmean(waited),
            "end": self.success(output),
        }
        shutil.rmtree(output)
        return found

    def both(self, **settings: Any) -> list[dict[str, Any]]:
        """(synchronous, asynchronous), the first one first with even seeds."""
        order = (0, STALENESS) if self.seed % 2 == 0 else (STALENESS, 0)
        found = {staleness: self.once(staleness, **settings) for staleness in order}
        return [found[0], found[STALENESS]]


class KilledRun:
    """A run whose training and engine are killed in turn. model, prompts: directories."""

    def __init__(self, folder: Path, model: Path, prompts: Path, steps: int, seed: int):
        self.folder, self.drawn, self.output = folder, random.Random(seed), folder / "out"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rewards.py").write_text(GRADES)
        self.settings = {
            "grader": f"{folder}/rewards.py:counted", "max_staleness": 2, "steps": steps, "prompts_per_step": 3, "answers": 4,
            "batch_size": 8, "max_new_tokens": 6, "max_length": 256, "precision": "float32", "overlong": "none",
            "learning_rate": 1e-4, "checkpoint_every": 2, "held_out_prompts": 0, "seed": seed,
        }  # fmt: skip
        self.inputs = {"model": model, "prompts": prompts}
        self.log = self.output / ".work/rollouts.jsonl"
        self.seen: list[bytes] = []
        """Chunks in the log when a kill came."""

    def run(self, kills: int) -> dict[str, Any]:
        """Runs it to its end, with so many kills; returns counts."""
        training = self._started()
        for number in range(kills):
            self._wait(training, more=2)
            time.sleep(self.drawn.random() * LONGEST_WAIT_S)
            if number % 2:
                for engine in engines_of(training.pid):
                    os.kill(engine, signal.SIGKILL)
            else:
                engines = engines_of(training.pid)
                training.kill()
                training.wait()
                self.seen = self._chunks()
                time.sleep(0.5)
                if any(Path(f"/proc/{engine}/cmdline").exists() and alive(engine) for engine in engines):
                    raise RuntimeError("an engine outlived its training")
                training = self._started()
        if training.wait():
            raise RuntimeError(f"the training failed: see {self.folder}/output")
        return self._counts()

    def _started(self) -> subprocess.Popen[bytes]:
        job = Job(operation="rft", inputs=self.inputs, output=self.output, settings=self.settings, threads=THREADS)
        (self.folder / "job.json").write_text(job.model_dump_json())
        with (self.folder / "output").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "model_ops.worker", str(self.folder / "job.json")], stdout=said, stderr=said
            )

    def _wait(self, training: subprocess.Popen[bytes], more: int) -> None:
        """Until the log has so many chunks more than now."""
        before = len(self._chunks())
        while len(self._chunks()) < before + more:
            if training.poll() is not None:
                raise RuntimeError(f"the training ended before all kills: see {self.folder}/output")
            time.sleep(0.02)

    def _chunks(self) -> list[bytes]:
        lines = self.log.read_bytes().splitlines(keepends=True) if self.log.exists() else []
        return [line for line in lines if line.endswith(b"\n") and b'"outcomes"' not in line]

    def _counts(self) -> dict[str, Any]:
        chunks, rows = self._chunks(), pq.read_table(self.output / "rollouts.parquet").to_pylist()
        made = [rollout for line in chunks for rollout in json.loads(line).get("rollouts", ())]
        again = self.folder / "again"
        (again / ".work").mkdir(parents=True)
        (again / ".work/rollouts.jsonl").write_bytes(b"".join(chunks))
        graded = len((self.folder / "graded").read_text().splitlines())
        rft.run(Job(operation="rft", inputs=self.inputs, output=again, settings=self.settings, threads=THREADS), Progress())
        learnt = [row["learnt"] for row in rows]
        due = [row["learnt"] for row in pq.read_table(again / "rollouts.parquet").to_pylist()]
        weights = [(folder / "model.safetensors").read_bytes() for folder in (self.output, again)]
        steps = [json.loads(line)["step"] for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        unlike = len(made) if weights[0] != weights[1] else 0
        due_of_steps = self.settings["steps"] * self.settings["prompts_per_step"] * self.settings["answers"]
        return {
            "rollouts": len(made),
            "lost": len(set(self.seen) - set(chunks)) + max(0, due_of_steps - len(made)) + sum(due) - sum(learnt),
            "duplicated": len(rows) - due_of_steps + len(chunks) - len(set(chunks)) + len(steps) - len(set(steps)) + unlike,
            "asked_again": graded - len(made),
            "largest_staleness": max(row["step"] - row["version"] for row in rows),
        }


def engines_of(training: int) -> list[int]:
    """The processes of engines that a training started."""
    children = [
        int(each) for task in Path(f"/proc/{training}/task").iterdir() for each in (task / "children").read_text().split()
    ]
    return [child for child in children if b"engine_child" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def compared(runs: list[list[dict[str, Any]]], prefix: str = "") -> dict[str, Any]:
    """Figures of (synchronous, asynchronous) runs."""
    return {
        f"{prefix}speed_ratio": interval([one["steady"] / other["steady"] for one, other in runs]),
        f"{prefix}whole_speed_ratio": interval([one["seconds"] / other["seconds"] for one, other in runs]),
        f"{prefix}reward_gap": interval([other["end"] - one["end"] for one, other in runs]),
        f"{prefix}staleness": round(fmean(other["staleness"] for _, other in runs), 2),
        f"{prefix}largest_staleness": max(other["largest_staleness"] for _, other in runs),
        f"{prefix}seconds": [[round(each["seconds"], 1) for each in pair] for pair in runs],
        f"{prefix}end": [[round(each["end"], 3) for each in pair] for pair in runs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.async_rl", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="folder with models/house")
    parser.add_argument("--quick", action="store_true", help="one seed, few steps, two kills; nothing is recorded")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="some parts; nothing is recorded")
    given = parser.parse_args()
    house, figures, quick = given.shared.resolve() / "models/house", dict[str, Any](), given.quick
    with tempfile.TemporaryDirectory(prefix="millrace-async-rl-") as name:
        races = [Race(house, Path(name) / f"count-{seed}", seed) for seed in (SEEDS[:1] if quick else SEEDS)]
        steps = 4 if quick else STEPS
        if "speed" in given.parts:
            runs = []
            for race in races:
                runs.append(race.both(steps=steps))
                print(json.dumps({"part": "speed", "seed": race.seed, "runs": runs[-1]}), flush=True)
            alone = {threads: races[0].once(0, threads, steps=3 if quick else 12) for threads in (1, 2)}
            figures |= compared(runs) | {
                "step_seconds": {
                    side: {threads: round(found[side], 3) for threads, found in alone.items()}
                    for side in ("sampling", "learning")
                }
            }
        if "judge" in given.parts:
            runs = []
            for race in races:
                grader = f"{race.folder}/rewards.py:judge"
                runs.append(race.both(steps=4 if quick else JUDGE_STEPS, grader=grader))
                print(json.dumps({"part": "judge", "seed": race.seed, "runs": runs[-1]}), flush=True)
            figures |= compared(runs, "judge_")
        if "kills" in given.parts:
            kills = 2 if quick else KILLS
            killed = KilledRun(Path(name) / "killed", races[0].start, races[0].prompts_folder, 30 if quick else KILLED_STEPS, 0)
            found = {**killed.run(kills), "kills": kills}
            figures |= {name: found[name] for name in ("lost", "duplicated", "asked_again", "kills")}
            figures["killed_run"] = {name: found[name] for name in ("rollouts", "largest_staleness")}
    record("async_rl", figures, keep=not quick and set(given.parts) == set(PARTS))


if __name__ == "__main__":
    main()
