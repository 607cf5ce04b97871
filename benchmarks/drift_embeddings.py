"""How often new topics are found within a day by embeddings, how often a quiet day alarms, and what embedding costs.

    python -m benchmarks.drift_embeddings DIR             # DIR: an embedding model; about 15 s of processor time
    python -m benchmarks.drift_embeddings DIR --quick     # fewer days and prompts; nothing is recorded

Simulated traffic: a day has 60 sessions of 1 to 5 prompts; a session is on one of 30 topics, and its prompts' vectors (24
numbers) lie around the topic's. A reference is 7 days of vocabulary and 21 to compare with. found: share of days that alarm at
the recipe's rate of 1 in 1,000 (this test alone) where a share of the sessions is on five new topics. quiet: share of days
that alarm at a rate of 1 in 10, a rate at which some can be seen, where nothing changed; each reference has few days of its
own, since the rate holds on average over references. cost: processor seconds of one core for 1,000 prompts of 40 words, with
what one job needs to load the model apart, and for their nearest neighbours.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.record import record
from model_ops.jobs.job import Job
from model_ops.jobs.progress import Progress
from model_ops.operations.embed import run
from resources.drifting.compare import WindowComparison
from resources.drifting.days import Reference
from resources.drifting.permutation import Columns
from resources.drifting.session_counts import MOST_KNOWN, is_far, nearest, usual_similarity
from resources.drifting.settings import DriftSettings

SESSIONS, TOPICS, NEW_TOPICS, HIDDEN, SPREAD = 60, 30, 5, 24, 0.35
FIRST, VOCABULARY, COMPARED = date(2026, 6, 1), 7, 21
SHARES = (0.1, 0.25, 0.5)
WORDS = ("mill", "grinds", "grain", "into", "flour", "while", "water", "turns", "the", "wheel", "and", "miller", "counts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="the directory of a model")
    parser.add_argument("--quick", action="store_true", help="fewer days and prompts; nothing is recorded")
    given = parser.parse_args()
    if not (given.model / "config.json").is_file():
        raise SystemExit(f"Not measured: {given.model} holds no config.json.")
    torch.set_num_threads(1)
    references, prompts = (1, 64) if given.quick else (3, 300)
    quiet = [alarms_of(seed, 0.0, 0.1, 10) for seed in range(10 * references)]
    found = {share: [alarms_of(100 + seed, share, 0.001, 40) for seed in range(references)] for share in SHARES}
    record(
        "drift_embeddings",
        {
            "found": {f"{share:.2f}": round(sum(alarms) / (40 * references), 3) for share, alarms in found.items()},
            "days_of_a_share": 40 * references,
            "quiet": round(sum(quiet) / (100 * references), 3),
            "quiet_days": 100 * references,
            "quiet_rate": 0.1,
            "cost": cost(given.model, prompts),
        },
        keep=not given.quick,
    )


def alarms_of(seed: int, share: float, rate: float, windows: int) -> int:
    """Days that alarm, of `windows` days after one reference."""
    rng = np.random.default_rng(seed)
    topics, new = rng.standard_normal((TOPICS, HIDDEN)), rng.standard_normal((NEW_TOPICS, HIDDEN))
    vocabulary = [day_of(rng, topics, new, 0.0) for _ in range(VOCABULARY)]
    known = np.concatenate([vectors for vectors, _ in vocabulary])
    usual = usual_similarity(known, np.concatenate([names + SESSIONS * day for day, (_, names) in enumerate(vocabulary)]))
    days = [FIRST + timedelta(place) for place in range(VOCABULARY + COMPARED)]
    reference = Reference(days[0], days[-1], tuple(days[:VOCABULARY]), tuple(days[VOCABULARY:]))
    comparison = WindowComparison(
        reference,
        {day: counts(day_of(rng, topics, new, 0.0), known, usual) for day in reference.comparison},
        [Columns("novelty_embeddings", "rise", 0, 2)],
        DriftSettings(windows=[1]),
        rate,
        f"simulated {seed}",
    )
    found = 0
    for place in range(windows):
        day = days[-1] + timedelta(1 + place)
        [result] = comparison.of_day(day, {day: counts(day_of(rng, topics, new, share), known, usual)})
        found += result.alarm
    return found


def day_of(rng: np.random.Generator, topics: np.ndarray, new: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of a day's prompts, and the session of each."""
    about = np.where(
        rng.random(SESSIONS) < share, TOPICS + rng.integers(NEW_TOPICS, size=SESSIONS), rng.integers(TOPICS, size=SESSIONS)
    )
    lengths = rng.integers(1, 6, SESSIONS)
    centres = np.concatenate([topics, new])[np.repeat(about, lengths)]
    return _unit(centres + SPREAD * rng.standard_normal(centres.shape)), np.repeat(np.arange(SESSIONS), lengths)


def counts(day: tuple[np.ndarray, np.ndarray], known: np.ndarray, usual: float) -> np.ndarray:
    """Far and near prompts of each session."""
    vectors, names = day
    far = is_far(vectors, known, usual)
    return np.stack([np.bincount(names, far, SESSIONS), np.bincount(names, ~far, SESSIONS)], axis=1)


def cost(model: Path, prompts: int) -> dict[str, Any]:
    """Processor seconds of 1,000 prompts, from two jobs of different size."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 40)) for _ in range(prompts)]
    few = prompts // 6
    _embedded(model, texts[:4])  # imports, and the file in the system's memory
    small, large = _embedded(model, texts[:few]), _embedded(model, texts)
    each = (large - small) / (prompts - few)
    known = _unit(rng.standard_normal((MOST_KNOWN, 384)))
    begun = time.process_time()
    nearest(known[:1_000], known)
    return {
        "embedding_cpu_s_per_1000": round(1_000 * each, 1),
        "loading_cpu_s": round(max(0.0, small - few * each), 1),
        "nearest_cpu_s_per_1000": round(time.process_time() - begun, 2),
        "parameters": _parameters(model),
    }


def _embedded(model: Path, texts: Sequence[str]) -> float:
    """Processor seconds of one job."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        pq.write_table(pa.table({"text": pa.array(texts)}), Path(folder) / "texts.parquet")
        output = Path(folder) / "vectors"
        output.mkdir()
        job = Job(
            operation="embed",
            output=output,
            inputs={"model": model, "texts": Path(folder)},
            settings={"max_length": 512},
            threads=1,
        )
        begun = time.process_time()
        run(job, Progress())
        return time.process_time() - begun


def _parameters(model: Path) -> int:
    from model_ops.models.model_directory import headers

    return sum(int(np.prod(shape)) for shape in headers(model).values())


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


if __name__ == "__main__":
    main()
