"""How full packed rows are, and how long packing takes.

    python -m benchmarks.packing [--quick] [--peer PYTHON]

Efficiency is ceil(total / capacity) / rows: 1 where no packing could have fewer rows, whatever the lengths. Real lengths
are those of GSM8K and of tau-bench dialogues by the house tokenizer's chat template, whole, none split; the others are
drawn with a fixed seed, a million of each (--quick: two of these cases). For those the bound may be out of reach, so the
lower bound that takes lengths into account (model_ops.documents.bin_packing.fewest_rows) stands beside it. Plain best-fit
decreasing is measured on the same lengths. seconds_per_million is the slowest of the million-length cases, in one process
with machine code already compiled; compiling it once, on a machine's first run, is timed apart.

--peer PYTHON is an interpreter that has TRL and datasets: its packer (bfd, the default of its SFTTrainer) packs the same
real lengths, and a million of them where not --quick.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import record
from model_ops.documents.bin_packing import fewest_rows, pack
from model_ops.documents.conversations import tokenize
from model_ops.documents.packing_kernels import best_fit
from model_ops.models.model_directory import load_tokenizer
from model_ops.rendering.row import Row

SHARED = Path(__file__).resolve().parents[2] / "shared"
QUICK = ("log-normal", "a tenth to four tenths")
WHOLE = 10**9
"""A max_length that cuts nothing."""

PEER = """
import json, sys, time
import numpy as np
import pyarrow as pa
from datasets import Dataset
from trl import pack_dataset
lengths, capacity = np.load(sys.argv[1]), int(sys.argv[2])
offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
values = pa.array(np.zeros(int(offsets[-1]), np.int8))
table = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), values)})
dataset = Dataset(table).with_format("arrow")
began = time.perf_counter()
packed = pack_dataset(dataset, capacity, "bfd")
print(json.dumps({"rows": len(packed), "seconds": round(time.perf_counter() - began, 2)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two of the drawn cases instead of all")
    parser.add_argument("--peer", type=Path, help="an interpreter with TRL and datasets")
    given = parser.parse_args()
    compiled_s = _seconds(lambda: pack([3, 3, 4, 5, 6, 6], 9))
    real = [_measured(*case) for case in real_lengths()]
    drawn = [_measured(*case) for case in drawn_lengths() if not given.quick or case[0] in QUICK]
    for case in real + drawn:
        print(
            f"{case['name']:>24} {case['documents']:>9,} documents  rows {case['rows']:,} (bound {case['bound']:,}, best fit "
            f"{case['best_fit_rows']:,})  {case['efficiency']:.4f}  {case['seconds']:.2f} s"
        )
    figures: dict[str, Any] = {
        "efficiency": {case["name"]: case["efficiency"] for case in real},
        "seconds_per_million": max(case["seconds"] for case in drawn),
        "best_fit_efficiency": {case["name"]: case["best_fit_efficiency"] for case in real},
        "drawn": {
            case["name"]: {key: case[key] for key in ("efficiency", "best_fit_efficiency", "reachable", "seconds")}
            for case in drawn
        },
        "seconds_to_compile": round(compiled_s, 2),
    }
    if given.peer:
        cases = list(real_lengths()) + ([] if given.quick else [next(drawn_lengths())])
        figures["trl"] = {name: _peer(given.peer, lengths, capacity) for name, lengths, capacity in cases}
    record("packing", figures, keep=not given.quick)


def real_lengths() -> Iterator[tuple[str, np.ndarray, int]]:
    """Name, tokens of each document, capacity."""
    tokenizer = load_tokenizer(SHARED / "models" / "house")
    answers = [json.loads(line) for line in (SHARED / "data" / "gsm8k_train.jsonl").read_text().splitlines()]
    rows = [
        Row(str(i), [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}])
        for i, row in enumerate(answers)
    ]
    yield "gsm8k", tokenize(rows, tokenizer, WHOLE)[0].lengths, 2_048
    trials = json.loads((SHARED / "data" / "tau_airline.json").read_text())
    rows = [Row(str(i), trial["traj"]) for i, trial in enumerate(trials)]
    yield "tau_airline", tokenize(rows, tokenizer, WHOLE)[0].lengths, 16_384


def drawn_lengths(documents: int = 1_000_000) -> Iterator[tuple[str, np.ndarray, int]]:
    """Name, lengths, capacity. From long tails, which any packer fills, to two or three in a row, which none does."""
    draw = np.random.default_rng(0)
    yield "log-normal", np.minimum(draw.lognormal(6, 1, documents).astype(np.int64) + 1, 4_096), 4_096
    yield "log-normal, 131k", np.minimum(draw.lognormal(9, 1, documents).astype(np.int64) + 1, 131_072), 131_072
    yield "uniform", draw.integers(1, 2_049, documents), 2_048
    yield "a tenth to four tenths", draw.integers(205, 820, documents), 2_048
    yield "two to six tenths", draw.integers(410, 1_229, documents), 2_048
    two = np.where(draw.random(documents) < 0.5, draw.normal(900, 50, documents), draw.normal(300, 40, documents))
    yield "two kinds", two.astype(np.int64), 2_048
    yield "a quarter to a half", draw.integers(513, 1_024, documents), 2_048
    yield "above half", draw.integers(1_025, 2_049, documents), 2_048


def _measured(name: str, lengths: np.ndarray, capacity: int) -> dict[str, Any]:
    began_s = time.perf_counter()
    rows = len(pack(lengths, capacity))
    seconds = time.perf_counter() - began_s
    bound = -(-int(lengths.sum()) // capacity)
    best_fit_rows = best_fit(np.sort(lengths)[::-1].copy(), capacity)[1]
    return {
        "name": name,
        "documents": len(lengths),
        "rows": rows,
        "bound": bound,
        "best_fit_rows": best_fit_rows,
        "efficiency": round(bound / rows, 4),
        "best_fit_efficiency": round(bound / best_fit_rows, 4),
        "reachable": round(bound / fewest_rows(lengths, capacity), 4),
        "seconds": round(seconds, 3),
    }


def _peer(python: Path, lengths: np.ndarray, capacity: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "lengths.npy", lengths)
        done = subprocess.run(
            [python, "-c", PEER, Path(folder) / "lengths.npy", str(capacity)], check=True, capture_output=True, text=True
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "efficiency": round(-(-int(lengths.sum()) // capacity) / found["rows"], 4)}


def _seconds(work) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
