"""Distillation from the teacher's cached tokens against the teacher online: bytes, speed, loss.

    python -m benchmarks.teacher_cache             # 2 idle cores, a quarter of an hour
    python -m benchmarks.teacher_cache --quick     # a few steps: the figures mean nothing

Teacher ../shared/models/house (10 layers, 10M); students of half and of a fifth of its layers, forward KL, the same rows in
the same order. A pair is one training with the teacher online and one with its cache, in turn, on the same threads.

bytes_per_token: of one target on disk. speed_ratio: tokens/s with the cache over tokens/s online, without the time that writing
it takes, [median, smallest, largest] over the pairs, by student; write_share: seconds of writing over those of one pass online.
loss_difference: held-out bits per byte of the cached student less those of the online one, by pair; seed_spread: largest less
smallest held-out bits of the online ones, by student: what another seed changes.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import record
from benchmarks.student import LEARNING_RATE, PROJECT, TOKENS_PER_STEP, Bench
from model_ops.documents.documents import Documents
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import Progress
from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.objectives.teacher_cache import TeacherCache
from model_ops.pruning.layer_importance import evenly_spaced, make_student
from model_ops.training.settings import first_documents
from model_ops.training.trainer import train

DEPTHS = {"half": 0.5, "fifth": 0.2}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teacher_cache", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of every training")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few steps of one pair: the figures mean nothing")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    steps, pairs = (3, 1) if given.quick else (given.steps, given.pairs)
    with tempfile.TemporaryDirectory(prefix="teacher-cache-") as scratch:
        record("teacher_cache", Pairs(given.shared, Path(scratch), steps).figures(pairs), keep=not given.quick)


class Pairs:
    """Trainings in pairs, one with the teacher online and one with its cache."""

    def __init__(self, shared: Path, folder: Path, steps: int):
        self.bench, self.folder, self.steps = Bench(shared, folder, steps, (), prompts=0), folder, steps
        self.rows = Documents.gather(first_documents(self.bench.rows, steps * TOKENS_PER_STEP))

    def figures(self, pairs: int) -> dict[str, Any]:
        """Writes the cache, then trains each student in pairs."""
        bench = self.bench
        start = time.perf_counter()
        settings = bench.settings(0, LEARNING_RATE)
        cache = TeacherCache.write(
            self.folder / "teacher", bench.teacher, self.rows, settings.top_k, 1.0, "bfloat16", drawn=settings.drawn_tokens
        )
        written = time.perf_counter() - start
        ratios, differences, spread, speeds = {}, {}, {}, {}
        for name, share in DEPTHS.items():
            runs = [(self._trained(share, seed, None), self._trained(share, seed, cache)) for seed in range(pairs)]
            found = [cached[0] / online[0] for online, cached in runs]
            ratios[name] = [round(value, 3) for value in (statistics.median(found), min(found), max(found))]
            differences[name] = [round(cached[1] - online[1], 4) for online, cached in runs]
            bits = [online[1] for online, _ in runs]
            spread[name] = round(max(bits) - min(bits), 4)
            speeds[name] = [[round(online[0]), round(cached[0])] for online, cached in runs]
            print(name, ratios[name], differences[name], flush=True)
        tokens = sum(len(document) for document in self.rows)
        one_pass = tokens / statistics.median(online for online, _ in speeds["half"])
        return {
            "bytes_per_token": cache.bytes_per_target,
            "speed_ratio": ratios,
            "write_share": round(written / one_pass, 3),
            "loss_difference": differences,
            "seed_spread": spread,
            "tokens_per_s": speeds,
            "steps": self.steps,
            "top_k": settings.top_k,
            "drawn": cache.drawn,
            "targets": int(cache.starts[-1]),
        }

    def _trained(self, share: float, seed: int, cache: TeacherCache | None) -> tuple[float, float]:
        """(tokens/s, held-out bits per byte) of one training."""
        bench, work = self.bench, self.folder / "run"
        depth = bench.teacher.config.num_hidden_layers
        student = make_student(bench.teacher, evenly_spaced(depth, round(depth * share))).requires_grad_(True)
        settings = bench.settings(seed, LEARNING_RATE)
        plan = PackedPlan(self.rows, settings)
        if cache is not None:
            plan.streams = cache
        loss = distillation_loss(None if cache is not None else bench.teacher, Divergence())
        result = train(student, plan, loss, settings, work, Progress(), "student")
        shutil.rmtree(work, ignore_errors=True)
        return result.tokens_per_second, bench.bits_per_byte(student)


if __name__ == "__main__":
    main()
