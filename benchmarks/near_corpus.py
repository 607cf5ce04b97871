"""Real documents with edited copies planted among them, and which pairs of them are truly alike.

    corpus = make_corpus(120_000)
    truth = true_pairs(corpus.texts, 0.7)

Documents: functions of the standard library, its tests and the installed packages, as their source stands, and the
texts of ../shared/data where it lies beside the checkout. No two of them have the same words. Copies: of documents of
50 words or more, with 2 %, 5 % or 10 % of their words deleted, replaced or inserted, each with the same chance.

Truth: every pair whose sets of word 5-grams have a Jaccard similarity of at least the threshold, found without hashing
tricks by prefix filtering (Chaudhuri, Ganti, Kaushik 2006): with n-grams ordered from the rarest, two sets of
similarity t or more share one of the first |x| - ceil(t |x|) + 1 n-grams of both; all pairs that do are compared.
"""

import ast
import json
import math
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from model_ops.machine.compilation import compiled

RATES = (0.02, 0.05, 0.10)
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Corpus:
    texts: list[str]
    planted: list[tuple[int, int, float]]
    """(document, its edited copy, rate)."""

    @property
    def megabytes(self) -> float:
        return sum(len(text.encode()) for text in self.texts) / 1e6


def make_corpus(documents: int, copies: int, seed: int = 1) -> Corpus:
    """`documents` different documents and `copies` edited ones, shuffled."""
    rng = random.Random(seed)
    texts: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for text in _sources():
        words = tuple(WORD.findall(text.lower()))
        if len(words) >= 20 and words not in seen:
            seen.add(words)
            texts.append(text)
            if len(texts) == documents:
                break
    long_enough = [place for place, text in enumerate(texts) if len(text.split()) >= 50]
    chosen = rng.sample(long_enough, min(copies, len(long_enough)))
    vocabulary = [word for place in rng.sample(range(len(texts)), min(500, len(texts))) for word in texts[place].split()]
    pairs = []
    for number, place in enumerate(chosen):
        rate = RATES[number % len(RATES)]
        pairs.append((place, len(texts), rate))
        texts.append(_edited(texts[place], rate, vocabulary, rng))
    order = list(range(len(texts)))
    rng.shuffle(order)
    new_place = {old: new for new, old in enumerate(order)}
    return Corpus([texts[old] for old in order], [(new_place[a], new_place[b], rate) for a, b, rate in pairs])


def _edited(text: str, rate: float, vocabulary: list[str], rng: random.Random) -> str:
    """Spaces stay where they are; `rate` of the words, at least one, are deleted, replaced or get a neighbour."""
    pieces = re.split(r"(\s+)", text)
    places = [place for place, piece in enumerate(pieces) if piece and not piece.isspace()]
    for place in rng.sample(places, max(1, round(rate * len(places)))):
        match rng.randrange(3):
            case 0:
                pieces[place] = ""
            case 1:
                pieces[place] = rng.choice(vocabulary)
            case 2:
                pieces[place] += " " + rng.choice(vocabulary)
    return "".join(pieces)


def _sources() -> Iterator[str]:
    yield from _shared_texts()
    paths = sysconfig.get_paths()
    for folder in (Path(paths["stdlib"]), Path(paths["purelib"])):
        for path in sorted(folder.rglob("*.py")):
            if folder.name != "site-packages" and "site-packages" in path.parts:
                continue
            try:
                text = path.read_text(encoding="utf-8")
                tree = ast.parse(text)
            except (OSError, ValueError, SyntaxError):  # tests of the standard library hold files that are meant to be wrong
                continue
            lines = text.splitlines(keepends=True)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield "".join(lines[node.lineno - 1 : node.end_lineno])


def _shared_texts() -> Iterator[str]:
    """Questions with their answers, and people's messages."""
    for name in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        if (SHARED / name).exists():
            for line in (SHARED / name).read_text(encoding="utf-8").splitlines():
                item = json.loads(line)
                yield f"{item['question']}\n{item['answer']}"
    if (SHARED / "oasst_en_100_tree.jsonl").exists():
        waiting = [json.loads(line)["prompt"] for line in (SHARED / "oasst_en_100_tree.jsonl").read_text().splitlines()]
        while waiting:
            message = waiting.pop()
            yield message["text"]
            waiting.extend(message.get("replies", ()))


@dataclass(frozen=True)
class Truth:
    """The documents' n-grams, as sorted numbers, and all pairs at or above the threshold."""

    values: np.ndarray
    offsets: np.ndarray
    pairs: np.ndarray
    similarities: np.ndarray

    def similarity(self, pairs: np.ndarray) -> np.ndarray:
        """The exact Jaccard similarity of any pairs."""
        return _jaccard(self.values, self.offsets, np.asarray(pairs, np.int64).reshape(-1, 2))


def true_pairs(texts: list[str], threshold: float, size: int = 5) -> Truth:
    numbers: dict[str, int] = {}
    ids: dict[tuple[int, ...], int] = {}
    rows = []
    for text in texts:
        words = [numbers.setdefault(word, len(numbers)) for word in WORD.findall(text.lower())]
        runs = zip(*(words[step:] for step in range(size)), strict=False)
        rows.append(np.fromiter({ids.setdefault(run, len(ids)) for run in runs}, np.int64))
    del numbers
    lengths = np.array([len(row) for row in rows])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.concatenate(rows)
    rank = np.empty(len(ids), np.int64)
    rank[np.argsort(np.bincount(values, minlength=len(ids)), kind="stable")] = np.arange(len(ids))
    values = rank[values]
    owner = np.repeat(np.arange(len(rows)), lengths)
    values = values[np.lexsort((values, owner))]
    prefix = lengths - np.ceil(threshold * lengths - 1e-9).astype(np.int64) + 1
    in_prefix = np.arange(len(values)) - offsets[:-1][owner] < prefix[owner]
    with duckdb.connect() as connection:
        connection.register(
            "prefixes", pa.table({"gram": values[in_prefix], "document": owner[in_prefix], "length": lengths[owner[in_prefix]]})
        )
        candidates = connection.sql(
            "select distinct a.document as a, b.document as b from prefixes as a join prefixes as b using (gram) "
            "where a.document < b.document and least(a.length, b.length) >= $t * greatest(a.length, b.length) order by a, b",
            params={"t": threshold},
        ).fetchnumpy()
    pairs = np.stack([candidates["a"], candidates["b"]], axis=1).astype(np.int64)
    similarities = _jaccard(values, offsets, pairs)
    alike = similarities >= threshold - 1e-12
    return Truth(values, offsets, pairs[alike], similarities[alike])


@compiled
def _jaccard(values, offsets, pairs):
    found = np.empty(len(pairs))
    for at in range(len(pairs)):
        a, a_end = offsets[pairs[at, 0]], offsets[pairs[at, 0] + 1]
        b, b_end = offsets[pairs[at, 1]], offsets[pairs[at, 1] + 1]
        total = a_end - a + b_end - b
        shared = 0
        while a < a_end and b < b_end:
            if values[a] == values[b]:
                shared += 1
                a += 1
                b += 1
            elif values[a] < values[b]:
                a += 1
            else:
                b += 1
        found[at] = shared / (total - shared) if total > shared else 0.0
    return found


def expected_recall(similarity: float, bands: int, rows: int) -> float:
    """What banding promises for a pair (Leskovec, Rajaraman, Ullman, 3.4.2)."""
    return 1 - math.pow(1 - math.pow(similarity, rows), bands)
