"""Vectors against brute force, and rows that mean the same through a real worker and a tiny model."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from interaction_rows import days_of, interaction, read, store, thumb

from resources.curating.cleaning import clean
from resources.curating.curation import CurationSettings
from resources.curating.duplicates import semantic_duplicates
from resources.curating.duplicates.semantic_duplicates import group_vectors
from resources.curating.duplicates.union_find import join_pairs, settle
from resources.curating.selection import CurationError, curate
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables


def unit(vectors):
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def families(count, copies, noise, seed=0, width=32):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((count, width))
    vectors = np.repeat(centres, copies, axis=0) + noise * rng.standard_normal((count * copies, width))
    return unit(rng.permutation(vectors))


def test_groups_are_those_of_all_pairs():
    vectors = families(40, 3, 0.2)
    cosines = vectors @ vectors.T
    pairs = [(a, b) for a, b in itertools.combinations(range(120), 2) if cosines[a, b] >= 0.95]
    best, likeness = group_vectors(vectors, 0.95)
    groups = np.arange(120)
    join_pairs(groups, *map(np.array, zip(*pairs, strict=True)))
    settle(groups)
    assert best.tolist() == groups.tolist() and 40 < len(set(best.tolist())) < 120
    for row in range(120):
        mates = [cosines[row, other] for pair in pairs if row in pair for other in set(pair) - {row}]
        assert likeness[row] == pytest.approx(max(mates, default=0), abs=1e-5)


def test_clusters_find_what_brute_force_finds(monkeypatch):
    vectors = families(600, 4, 0.1, seed=1)
    everything, _ = group_vectors(vectors, 0.95)
    monkeypatch.setattr(semantic_duplicates, "TOGETHER", 256)
    clustered, _ = group_vectors(vectors, 0.95)
    assert len(semantic_duplicates._clusters(vectors)) > 10
    assert np.mean(clustered == everything) > 0.99
    assert group_vectors(vectors, 0.95)[0].tolist() == clustered.tolist()


def test_all_alike_and_nothing_at_all():
    best, likeness = group_vectors(unit(np.ones((6_000, 4))), 0.95)
    assert not best.any() and np.allclose(likeness, 1)
    assert group_vectors(np.zeros((0, 4), np.float32), 0.9)[0].tolist() == []
    assert group_vectors(np.zeros((3, 4), np.float32), 0.9)[0].tolist() == [0, 1, 2]


MEANT = CurationSettings(semantic_duplicates={"enabled": True, "model": "somewhere", "similarity": 0.9})


def test_of_rows_that_mean_the_same_the_best_stays(tmp_path):
    """A stand-in for the worker: the first letter of the answer is what a row means."""
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    long = "so the miller went down to the river and counted every sack of flour that the carts had brought"
    rows = [
        interaction(1, "What happened?", f"a {long} yesterday"),
        interaction(2, "What happened?", f"a {long} today", minutes=1),
        interaction(3, "Tell me", "a short one"),
        interaction(4, "Tell me more", "b is another thing"),
        interaction(5, "tell ME", "a SHORT one"),
    ]
    store(tables, "interactions", rows)
    store(tables, "feedback", [thumb(1, interaction_id="i3")])
    clean(tables, "tutor", days_of(rows), MEANT)

    def embed(folder):
        texts = pq.read_table(folder / "texts.parquet")["text"].to_pylist()
        return unit([[1, 0.1] if text.split("\n")[1].lower().startswith("a") else [0.1, 1] for text in texts])

    report = curate(tables, "tutor", tmp_path / "v1", MEANT, None, embed)
    decisions = {row["interaction_id"]: row for row in read(tables, "decisions") if row["stage"] == "curate"}
    assert report.dropped == {"exact_duplicate": 1, "near_duplicate": 1, "semantic_duplicate": 1} and report.rows == 2
    assert {name for name, row in decisions.items() if row["kept"]} == {"i3", "i4"}
    assert {row["kept_id"] for name, row in decisions.items() if not row["kept"]} == {"i3"}
    assert next(row["detail"] for row in decisions.values() if row["rule"] == "semantic_duplicate") == "cosine 1.000"
    with pytest.raises(CurationError, match="nothing was given that makes embeddings"):
        curate(tables, "tutor", tmp_path / "v2", MEANT, None)


def test_rows_that_consist_of_instructions_are_compared_with_none(tmp_path):
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    rules = " ".join(f"rule number {number} says that label {number} is for mill {number}" for number in range(12))
    rows = [
        interaction(number, f"{rules}. Sentence: the {word} is here", label)
        for number, (word, label) in enumerate([("sack", "yes"), ("wheel", "no"), ("river", "yes"), ("cart", "no")])
    ]
    rows += [
        interaction(8, "Where does the miller sleep?", "In the house."),
        interaction(9, "Where is his bed now?", "At home."),
    ]
    store(tables, "interactions", rows)
    clean(tables, "tutor", days_of(rows), MEANT)
    texts = []

    def embed(folder):
        texts.extend(pq.read_table(folder / "texts.parquet")["text"].to_pylist())
        return unit(np.ones((len(texts), 2)))

    report = curate(tables, "tutor", tmp_path / "v1", MEANT, None, embed)
    assert report.dropped == {"semantic_duplicate": 1} and len(texts) == 2


def test_a_model_must_be_named():
    with pytest.raises(ValueError, match="semantic_duplicates needs `model`"):
        CurationSettings(semantic_duplicates={"enabled": True})


@pytest.mark.slow
@pytest.mark.thorough
def test_a_worker_embeds_and_equal_texts_are_equal_vectors(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "model_ops"))
    import pyarrow as pa
    from tiny_models import write_target

    from model_ops.jobs import Job
    from resources.launching.local_launcher import LocalLauncher, WorkerError

    write_target(tmp_path / "model", layers=2)
    texts = ["def add(a, b):", "print('hello world')", "", "def add(a, b):", None, "x = 1\n" * 5_000, "\n"]
    (tmp_path / "texts").mkdir()
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), tmp_path / "texts" / "texts.parquet")
    inputs = {"model": tmp_path / "model", "texts": tmp_path / "texts"}
    with LocalLauncher() as launcher:
        job = Job(operation="embed", output=tmp_path / "out", inputs=inputs, settings={"max_length": 64, "batch": 2})
        assert launcher.run(job) == {"texts": 7, "embedded": 3, "hidden_size": 32}
        with pytest.raises(WorkerError, match=r"config\.json"):
            launcher.run(job.model_copy(update={"inputs": {**inputs, "model": tmp_path}, "output": tmp_path / "no"}))
    vectors = np.load(tmp_path / "out" / "embeddings.npy")
    assert np.allclose(np.linalg.norm(vectors[[0, 1, 3]], axis=1), 1, atol=1e-5)
    assert not vectors[[2, 4, 5, 6]].any()  # no words, or more than were read: alike to nothing
    assert np.allclose(vectors[0], vectors[3], atol=1e-5) and vectors[0] @ vectors[1] < 0.999
