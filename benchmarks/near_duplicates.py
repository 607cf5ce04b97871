"""The near-duplicate stage on real documents with planted copies, compared with other tools.

    python -m benchmarks.near_duplicates            # 120,000 documents and 9,000 copies: about ten minutes with peers
    python -m benchmarks.near_duplicates --quick    # 4,000 documents: under a minute
    python -m benchmarks.near_duplicates --peers VENV      # an environment that holds the peers already

The stage is `resources.curating.duplicates.near_duplicates.group_turns` with the recipe's defaults: words, signatures, banding,
exact verification, groups, as the pipeline runs them; the texts are in memory when the clock starts, the machine code was
compiled before, and the best of three runs counts, on one core and on all. Documents, copies and truth:
benchmarks/near_corpus.py. Peers: benchmarks/near_peers.py, as installed from the registry into an environment of their own, on
one core and on all; peers that take word 5-grams get them before the clock starts, while ours splits texts inside its clock.

Every tool is judged alike. A link is a pair of documents that it reports. precision: the share of its links whose true
Jaccard similarity is at or above 0.7. recall: the share of the planted pairs at or above 0.7 that its links connect;
recall_2pct: the same among copies with 2 % of their words changed; recall_all: among all true pairs, planted or not.
f1: of precision and recall. Every link of a peer is verified by its exact similarity, inside the peer's clock.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.near_corpus import Corpus, Truth, expected_recall, make_corpus, true_pairs
from benchmarks.record import record
from resources.curating.curation import NearDuplicates
from resources.curating.duplicates.near_duplicates import group_turns
from resources.curating.duplicates.union_find import join_pairs, settle
from resources.curating.shingles import threads

PEERS = {
    "datatrove": ["datatrove[io,processing]", "spacy"],
    "text-dedup": ["text-dedup"],
    "datasketch": ["datasketch"],
    "rensa": ["rensa"],
}
PEER_SECONDS = 1_800
BINS = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers", type=Path, help="a virtual environment with the peers; made afresh where left out")
    given = parser.parse_args()
    settings = NearDuplicates()
    corpus = make_corpus(*((4_000, 600) if given.quick else (120_000, 9_000)))
    print(f"{len(corpus.texts)} documents, {corpus.megabytes:.1f} MB", flush=True)
    truth = true_pairs(corpus.texts, settings.similarity, settings.ngram)
    print(f"{len(truth.pairs)} true pairs at or above {settings.similarity}", flush=True)
    alone = _alone(corpus, settings)
    seconds, links = _stage(corpus, settings)
    ours = _judged(links, corpus, truth, settings)
    print(json.dumps({"millrace": {"seconds": seconds, **ours}}), flush=True)
    peers = _peers(corpus, truth, settings, given.peers)
    record(
        "near_duplicates",
        {
            "mb_per_s": round(corpus.megabytes / seconds, 1),
            "docs_per_s": round(len(corpus.texts) / seconds),
            "docs_per_s_one_core": round(len(corpus.texts) / alone),
            **{name: ours[name] for name in ("recall", "recall_2pct", "precision", "f1", "recall_all")},
            "peers": peers,
            "documents": len(corpus.texts),
            "megabytes": round(corpus.megabytes, 1),
            "threads": threads(),
            "seconds": round(seconds, 3),
            "links": len(links),
            "true_pairs": len(truth.pairs),
            "peak_memory_mb": round(psutil.Process().memory_info().rss / 2**20),
            "settings": settings.model_dump(exclude={"enabled"}),
            "curve": ours["curve"],
        },
        keep=not given.quick,
    )


def _stage(corpus: Corpus, settings: NearDuplicates) -> tuple[float, np.ndarray]:
    """Seconds of the fastest of three runs, and the links."""
    answers = pa.array(corpus.texts, pa.large_string())
    questions = pa.nulls(len(answers), pa.large_string())
    group_turns(questions[:500], answers[:500], settings)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        links = group_turns(questions, answers, settings)
        best = min(best, time.perf_counter() - began)
    return best, links.pairs


def _alone(corpus: Corpus, settings: NearDuplicates) -> float:
    """Seconds on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        return _stage(corpus, settings)[0]
    finally:
        os.sched_setaffinity(0, cores)


def _judged(links: np.ndarray, corpus: Corpus, truth: Truth, settings: NearDuplicates) -> dict[str, Any]:
    links = np.unique(np.sort(np.asarray(links, np.int64).reshape(-1, 2), axis=1), axis=0)
    links = links[links[:, 0] != links[:, 1]]
    group = np.arange(len(corpus.texts), dtype=np.int64)
    join_pairs(group, links[:, 0].copy(), links[:, 1].copy())
    settle(group)
    precision = float(np.mean(truth.similarity(links) >= settings.similarity - 1e-12)) if len(links) else 0.0
    planted = np.array([(a, b) for a, b, _ in corpus.planted])
    rates = np.array([rate for _, _, rate in corpus.planted])
    similarity = truth.similarity(planted)
    found = group[planted[:, 0]] == group[planted[:, 1]]
    wanted = similarity >= settings.similarity - 1e-12
    recall = float(found[wanted].mean())
    curve = []
    for low, high in itertools.pairwise(BINS):
        inside = (similarity >= low) & (similarity < high)
        if inside.any():
            middle = float(similarity[inside].mean())
            curve.append(
                {
                    "from": low,
                    "to": high,
                    "pairs": int(inside.sum()),
                    "found": round(float(found[inside].mean()), 4),
                    "banding_promises": round(expected_recall(middle, settings.bands, settings.rows), 4),
                }
            )
    return {
        "recall": round(recall, 4),
        "recall_2pct": round(float(found[wanted & (rates == 0.02)].mean()), 4),
        "recall_all": round(float(np.mean(group[truth.pairs[:, 0]] == group[truth.pairs[:, 1]])), 4),
        "precision": round(precision, 4),
        "f1": round(2 * precision * recall / (precision + recall), 4) if precision + recall else 0.0,
        "curve": curve,
    }


def _peers(corpus: Corpus, truth: Truth, settings: NearDuplicates, environment: Path | None) -> dict[str, dict[str, Any]]:
    """What each peer did with the same documents; why not, where one cannot be installed or fails."""
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="millrace-peers-") as folder:
        documents = Path(folder, "documents.jsonl")
        with documents.open("w", encoding="utf-8") as file:
            for number, text in enumerate(corpus.texts):
                file.write(json.dumps({"id": number, "text": text}) + "\n")
        home = environment or Path(folder, "environment")
        if environment is None:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        for name, packages in PEERS.items():
            if environment is None:
                done = subprocess.run([str(home / "bin/pip"), "install", "--quiet", *packages], capture_output=True, text=True)
                if done.returncode:
                    results[name] = {"not_run": "could not be installed from the package registry"}
                    continue
            answers = [_answer(home, name, documents, cores) for cores in (1, threads())]
            failed = [answer["not_run"] for answer in answers if "not_run" in answer]
            if failed:
                results[name] = {"not_run": failed[0]}
                continue
            one, all_cores = answers
            judged = _judged(np.array(all_cores["links"], np.int64), corpus, truth, settings)
            judged.pop("curve")
            results[name] = {
                "docs_per_s": round(len(corpus.texts) / all_cores["seconds"]),
                "docs_per_s_one_core": round(len(corpus.texts) / one["seconds"]),
                **judged,
                "version": all_cores["version"],
                "seconds": round(all_cores["seconds"], 2),
                "search_seconds": round(all_cores["search_seconds"], 2),
                "reported": all_cores["reported"],
                "links": len(all_cores["links"]),
            }
            print(json.dumps({name: results[name]}), flush=True)
    return results


def _answer(home: Path, name: str, documents: Path, cores: int) -> dict[str, Any]:
    """A peer's answer, or why there is none."""
    folder = documents.parent
    into = folder / f"{name}.json"
    into.unlink(missing_ok=True)
    peer = [home / "bin/python", Path(__file__).with_name("near_peers.py"), name, documents, into, cores]
    try:
        done = subprocess.run(
            [str(word) for word in peer],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=PEER_SECONDS,
            env={**os.environ, "RAYON_NUM_THREADS": str(cores)},
        )
    except subprocess.TimeoutExpired:
        return {"not_run": f"took more than {PEER_SECONDS} s"}
    if done.returncode or not into.exists():
        return {"not_run": f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"}
    return json.loads(into.read_text())


if __name__ == "__main__":
    main()
