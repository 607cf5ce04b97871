"""One peer's near-duplicate search over the documents of a JSONL file, in the peers' own environment.

    PEERS/bin/python benchmarks/near_peers.py rensa documents.jsonl links.json

Knows nothing of this project: benchmarks.near_duplicates starts it. Each peer runs as its own pages show, with its own
defaults, on word 5-grams at threshold 0.7. The clock starts when the documents are in memory (datatrove and text-dedup read
files: theirs starts before that) and stops when the peer's answer is there; imports do not count. links.json:
{"seconds": ..., "version": ..., "links": [[document, document], ...]}.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import struct
import sys
import tempfile
import time
from pathlib import Path

THRESHOLD, NGRAM, CORES = 0.7, 5, 2
WORD = re.compile(r"\w+")


def shingles(text: str) -> set[str]:
    words = WORD.findall(text.lower())
    return {" ".join(run) for run in zip(*(words[step:] for step in range(NGRAM)), strict=False)}


def datasketch(path: Path) -> tuple[float, list]:
    from datasketch import MinHash, MinHashLSH

    texts = _texts(path)
    began = time.perf_counter()
    index = MinHashLSH(threshold=THRESHOLD, num_perm=128)
    links = []
    for number, text in enumerate(texts):
        grams = shingles(text)
        if not grams:
            continue
        signature = MinHash(num_perm=128)
        signature.update_batch([gram.encode() for gram in grams])
        links += [(other, number) for other in index.query(signature)]
        index.insert(number, signature)
    return time.perf_counter() - began, links


def rensa(path: Path) -> tuple[float, list]:
    from rensa import RMinHash, RMinHashDeduplicator

    texts = _texts(path)
    began = time.perf_counter()
    filled = [(str(number), grams) for number, text in enumerate(texts) if (grams := shingles(text))]
    signatures = RMinHash.from_token_sets([list(grams) for _, grams in filled], num_perm=128, seed=42)
    index = RMinHashDeduplicator(threshold=THRESHOLD, num_perm=128, use_lsh=True)
    keys = [key for key, _ in filled]
    keep = index.add_pairs(zip(keys, signatures, strict=True))
    left = [place for place, kept in enumerate(keep) if not kept]
    found = index.get_duplicate_sets([signatures[place] for place in left])
    links = [(int(other), int(keys[place])) for place, others in zip(left, found, strict=True) for other in others]
    return time.perf_counter() - began, links


def datatrove(path: Path) -> tuple[float, list]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
    from datatrove.pipeline.readers import JsonlReader

    lines = path.read_text(encoding="utf-8").splitlines()
    config = MinhashConfig()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "in")
        files.mkdir()
        for part in range(CORES):
            Path(files, f"{part}.jsonl").write_text("\n".join(lines[part::CORES]) + "\n", encoding="utf-8")
        logs = f"{folder}/logs"
        began = time.perf_counter()
        LocalPipelineExecutor(
            [JsonlReader(str(files)), MinhashDedupSignature(f"{folder}/signatures", config)], tasks=CORES, workers=CORES,
            logging_dir=f"{logs}/1",
        ).run()
        LocalPipelineExecutor(
            [MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)], tasks=config.num_buckets,
            workers=CORES, logging_dir=f"{logs}/2",
        ).run()
        LocalPipelineExecutor(
            [MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config)], tasks=1, logging_dir=f"{logs}/3"
        ).run()
        seconds = time.perf_counter() - began
        links = set()
        for file in Path(folder, "buckets").glob("*.dups"):
            for a_file, a, b_file, b in struct.iter_unpack("<4I", file.read_bytes()):
                links.add((a * CORES + a_file, b * CORES + b_file))
    return seconds, sorted(links)


def text_dedup(path: Path) -> tuple[float, list]:
    from text_dedup import minhash

    with tempfile.TemporaryDirectory() as folder:
        words = [
            "--path", "json", "--data_files", str(path), "--split", "train", "--cache_dir", f"{folder}/cache", "--output",
            f"{folder}/out", "--column", "text", "--ngram", str(NGRAM), "--threshold", str(THRESHOLD), "--num_proc", str(CORES),
        ]
        began = time.perf_counter()
        minhash.main.main(words, standalone_mode=False)
        seconds = time.perf_counter() - began
    parents = minhash.uf.parent
    return seconds, [(member, minhash.uf.find(member)) for member in list(parents) if minhash.uf.find(member) != member]


PEERS = {"datatrove": datatrove, "text-dedup": text_dedup, "datasketch": datasketch, "rensa": rensa}


def _texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    name, documents, into = sys.argv[1:]
    spent, found = PEERS[name](Path(documents))
    answer = {"seconds": spent, "version": importlib.metadata.version(name), "links": [list(map(int, one)) for one in found]}
    Path(into).write_text(json.dumps(answer))
