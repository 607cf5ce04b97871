"""One peer's near-duplicate search over the documents of a JSONL file, in the peers' own environment.

    PEERS/bin/python benchmarks/near_peers.py rensa documents.jsonl links.json 2

Knows nothing of this project: benchmarks.near_duplicates starts it. Each peer runs as its own pages show, with its own
defaults, on word 5-grams at threshold 0.7 and the given number of threads or processes. datasketch and rensa get documents that
are split into 5-grams before the clock starts; datatrove and text-dedup read files and split them themselves, inside the clock.
The exact Jaccard similarity of each reported link is computed inside the clock of all four, and a link below the threshold
is no answer: `links` are those at or above it, `reported` is the number before. Imports do not count. links.json:
{"seconds": ..., "search_seconds": without verification, "version": ..., "reported": ..., "links": [[document, document], ...]}.
"""

import importlib.metadata
import json
import os
import re
import struct
import sys
import tempfile
import time
from pathlib import Path

THRESHOLD, NGRAM = 0.7, 5
WORD = re.compile(r"\w+")


Grams = list[frozenset[str]]


def shingles(text: str) -> frozenset[str]:
    words = WORD.findall(text.lower())
    return frozenset(" ".join(run) for run in zip(*(words[step:] for step in range(NGRAM)), strict=False))


def verified(links: list, grams: Grams) -> list:
    """The links whose exact Jaccard similarity is at or above the threshold."""
    kept = []
    for a, b in links:
        common = len(grams[a] & grams[b])
        if common and common >= THRESHOLD * (len(grams[a]) + len(grams[b]) - common):
            kept.append((a, b))
    return kept


def datasketch(path: Path, grams: Grams, threads: int) -> tuple[float, list]:
    """Has no threads of its own: one thread does all the work."""
    from datasketch import MinHash, MinHashLSH

    encoded = [[gram.encode() for gram in one] for one in grams]
    began = time.perf_counter()
    index = MinHashLSH(threshold=THRESHOLD, num_perm=128)
    links = []
    for number, tokens in enumerate(encoded):
        if not tokens:
            continue
        signature = MinHash(num_perm=128)
        signature.update_batch(tokens)
        links += [(other, number) for other in index.query(signature)]
        index.insert(number, signature)
    return time.perf_counter() - began, links


def rensa(path: Path, grams: Grams, threads: int) -> tuple[float, list]:
    from rensa import RMinHash, RMinHashDeduplicator

    filled = [(str(number), list(one)) for number, one in enumerate(grams) if one]
    began = time.perf_counter()
    signatures = RMinHash.from_token_sets([tokens for _, tokens in filled], num_perm=128, seed=42)
    index = RMinHashDeduplicator(threshold=THRESHOLD, num_perm=128, use_lsh=True)
    keys = [key for key, _ in filled]
    keep = index.add_pairs(zip(keys, signatures, strict=True))
    left = [place for place, kept in enumerate(keep) if not kept]
    found = index.get_duplicate_sets([signatures[place] for place in left])
    links = [(int(other), int(keys[place])) for place, others in zip(left, found, strict=True) for other in others]
    return time.perf_counter() - began, links


def datatrove(path: Path, grams: Grams, threads: int) -> tuple[float, list]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
    from datatrove.pipeline.readers import JsonlReader

    lines = path.read_text(encoding="utf-8").splitlines()
    config = MinhashConfig()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "in")
        files.mkdir()
        for part in range(threads):
            Path(files, f"{part}.jsonl").write_text("\n".join(lines[part::threads]) + "\n", encoding="utf-8")
        logs = f"{folder}/logs"
        began = time.perf_counter()
        LocalPipelineExecutor(
            [JsonlReader(str(files)), MinhashDedupSignature(f"{folder}/signatures", config)],
            tasks=threads,
            workers=threads,
            logging_dir=f"{logs}/1",
        ).run()
        LocalPipelineExecutor(
            [MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)],
            tasks=config.num_buckets,
            workers=threads,
            logging_dir=f"{logs}/2",
        ).run()
        LocalPipelineExecutor(
            [MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config)], tasks=1, logging_dir=f"{logs}/3"
        ).run()
        seconds = time.perf_counter() - began
        links = set()
        for file in Path(folder, "buckets").glob("*.dups"):
            for a_file, a, b_file, b in struct.iter_unpack("<4I", file.read_bytes()):
                links.add((a * threads + a_file, b * threads + b_file))
    return seconds, sorted(links)


def text_dedup(path: Path, grams: Grams, threads: int) -> tuple[float, list]:
    from text_dedup import minhash

    with tempfile.TemporaryDirectory() as folder:
        words = [
            "--path",
            "json",
            "--data_files",
            str(path),
            "--split",
            "train",
            "--cache_dir",
            f"{folder}/cache",
            "--output",
            f"{folder}/out",
            "--column",
            "text",
            "--ngram",
            str(NGRAM),
            "--threshold",
            str(THRESHOLD),
            "--num_proc",
            str(threads),
        ]
        began = time.perf_counter()
        minhash.main.main(words, standalone_mode=False)
        seconds = time.perf_counter() - began
    parents = minhash.uf.parent
    return seconds, [(member, minhash.uf.find(member)) for member in list(parents) if minhash.uf.find(member) != member]


PEERS = {"datatrove": datatrove, "text-dedup": text_dedup, "datasketch": datasketch, "rensa": rensa}


def _texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    name, documents, into, threads = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    grams = [shingles(text) for text in _texts(documents)]
    search_s, reported = PEERS[name](documents, grams, threads)
    began = time.perf_counter()
    links = verified([tuple(map(int, link)) for link in reported], grams)
    spent = search_s + time.perf_counter() - began
    into.write_text(
        json.dumps(
            {
                "seconds": spent,
                "search_seconds": search_s,
                "version": importlib.metadata.version(name),
                "reported": len(reported),
                "links": links,
            }
        )
    )


if __name__ == "__main__":
    main()
