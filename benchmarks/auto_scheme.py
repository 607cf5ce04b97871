"""Mixed precision by measured sensitivity against one scheme for all layers, at the same size.

    python -m benchmarks.auto_scheme               # 2 idle cores, ten minutes
    python -m benchmarks.auto_scheme --quick       # few rows: the figures mean nothing

Model ../shared/models/house. Calibration: 256 of GSM8K's training questions with answers; held out: 300 test questions. For
every uniform scheme the budget of `auto` is its own size; candidates are int4 in groups of 128, 64 and 32, int8 in groups
of 128, and bfloat16. Both sides round int4 by GPTQ with the same rows. (At the size of groups of 128, the smallest
candidate, there is no choice.)

divergence: KL(float || quantized) in nats per held-out answer token (128 likeliest tokens and one bucket), of the uniform
scheme and of auto. gain: 1 - auto over uniform, with the 95 % interval of a paired bootstrap over rows. bytes: of both; auto's
are at most the uniform scheme's. distilled: the same model after 60 steps of training before rounding (quantize.distil,
learning rate 1e-4, 4,096 tokens a step), rounded to nearest.
"""

import argparse
import json
import math
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.house import House
from benchmarks.record import record
from benchmarks.sft_material import gsm8k
from model_ops.documents.conversations import tokenize
from model_ops.evaluation.token_scores import scored_model
from model_ops.files.tensor_files import read_directory
from model_ops.jobs import Job, Progress
from model_ops.models.model_directory import load_tokenizer
from model_ops.objectives.divergence_rows import RowDivergence, mean_divergence, row_divergences
from model_ops.objectives.teacher_cache import TeacherCache
from model_ops.operations import quantize

PROJECT = Path(__file__).resolve().parent.parent
UNIFORM = ("w4a16_g64", "w4a16_g32")
CANDIDATES = ["w4a16", "w4a16_g64", "w4a16_g32", "w8a16", "float"]
ROWS, HELD_OUT, LENGTH, TOP_K, RESAMPLES = 256, 300, 512, 128, 2_000
DISTIL = {"enabled": True, "steps": 60, "learning_rate": 1e-4, "tokens_per_step": 4_096, "max_length": LENGTH}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto_scheme", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few rows: the figures mean nothing")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory(prefix="auto-scheme-") as scratch:
        record("auto_scheme", Bench(given.shared, Path(scratch), given.quick).figures(), keep=not given.quick)


class Bench:
    """The house model, quantized in several ways, and the float model's held-out distributions."""

    def __init__(self, shared: Path, folder: Path, quick: bool):
        self.model, self.folder, self.quick = House(shared, folder / "house").target, folder, quick
        train = gsm8k(shared, "train", plain=True)
        chosen = random.Random(0).sample(train, 16 if quick else ROWS)
        rest = [row for row in train if row not in chosen][: 40 if quick else 1_600]
        for name, rows in (("calibration", chosen), ("training", rest)):
            (folder / name).mkdir()
            pq.write_table(
                pa.table({"row_id": [row.row_id for row in rows], "messages": [json.dumps(row.messages) for row in rows]}),
                folder / name / "train.parquet",
            )
        test = gsm8k(shared, "test", 20 if quick else HELD_OUT, plain=True)
        held_out, _ = tokenize(test, load_tokenizer(self.model), LENGTH)
        cache = TeacherCache.write(folder / "float", scored_model(self.model), held_out, TOP_K, 1.0, "float32")
        self.taught = [cache.added_to(document, index) for index, document in enumerate(held_out)]

    def figures(self) -> dict[str, Any]:
        """Quantizes and compares with every uniform scheme."""
        found: dict[str, Any] = {}
        whole = sum(2 * math.prod(header.shape) for header in read_directory(self.model).values())
        for scheme in UNIFORM:
            uniform, size, _ = self.quantized({"scheme": scheme}, "calibration")
            mixed, its_size, told = self.quantized(
                {"scheme": "auto", "budget": size / whole, "candidates": CANDIDATES}, "calibration"
            )
            found[scheme] = {
                "divergence": [round(mean_divergence(rows), 6) for rows in (uniform, mixed)],
                "gain": gain(uniform, mixed),
                "bytes": [size, its_size],
                "units": told["units_by_scheme"],
            }
            print(scheme, found[scheme], flush=True)
        rounded, _, _ = self.quantized({"scheme": "w4a16", "method": "rtn"}, "calibration")
        distilled, _, _ = self.quantized(
            {"scheme": "w4a16", "distil": {**DISTIL, **({"steps": 2} if self.quick else {})}}, "training"
        )
        return {
            "at": found,
            "rounded": round(mean_divergence(rounded), 6),
            "distilled": round(mean_divergence(distilled), 6),
            "held_out_rows": len(self.taught),
            "held_out_tokens": sum(row.tokens for row in rounded),
        }

    def quantized(self, settings: dict[str, Any], rows: str) -> tuple[list[RowDivergence], int, dict[str, Any]]:
        """(divergence of each held-out row, bytes of all tensors, metrics) of one way to quantize."""
        before = sorted(self.folder.glob("q*/.work/auto/costs.json"))
        output = self.folder / f"q{len(list(self.folder.glob('q*')))}"
        if settings["scheme"] == "auto" and before:  # what a unit costs does not depend on the budget
            (output / ".work" / "auto").mkdir(parents=True)
            shutil.copyfile(before[-1], output / ".work" / "auto" / "costs.json")
        inputs = {"model": self.model, "dataset": self.folder / rows}
        told = quantize.run(
            Job(
                operation="quantize",
                output=output,
                inputs=inputs,
                settings={"calibration_rows": ROWS, "calibration_length": LENGTH, **settings},
            ),
            Progress(),
        )
        size = sum(len(header.read()) for header in read_directory(output).values())
        return row_divergences(scored_model(output), self.taught), size, told


def gain(uniform: list[RowDivergence], mixed: list[RowDivergence]) -> list[float]:
    """1 - mixed over uniform, and its 95 % interval: paired bootstrap over rows."""
    sums = np.array([[one.divergence, other.divergence] for one, other in zip(uniform, mixed, strict=True)])
    drawn = sums[np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))].sum(axis=1)
    low, high = np.percentile(1 - drawn[:, 1] / drawn[:, 0], [2.5, 97.5])
    return [round(float(value), 4) for value in (1 - sums[:, 1].sum() / sums[:, 0].sum(), low, high)]


if __name__ == "__main__":
    main()
