"""Groups turns with the same meaning: cosine similarity of embeddings, in blocks of bounded memory. Beyond a few thousand rows,
each is compared with those that share one of its four nearest centroids (spherical k-means). Rows are given best first."""

import itertools

import numpy as np
from jaxtyping import Float32, Float64, Int64

TOGETHER = 4_096
"""Approximate rows of a cluster: a block of similarities takes TOGETHER**2 * 4 bytes."""
STRIP = 256
"""Rows of a block whose pairs are listed at a time, since all pairs may be similar."""
NEAREST = 4
ROUNDS = 8
SAMPLE = 65_536
"""Most rows on which the centroids are computed."""


def group_vectors(
    vectors: Float32[np.ndarray, "rows hidden"], similarity: float
) -> tuple[Int64[np.ndarray, " rows"], Float64[np.ndarray, " rows"]]:
    """The best row of each row's group, and its highest similarity to another row of the group (0: none)."""
    from resources.curating.duplicates.union_find import join_pairs, settle

    count = len(vectors)
    parents = np.arange(count)
    likeness = np.zeros(count)
    for members in _clusters(vectors):
        for first in range(0, len(members), TOGETHER):
            block = vectors[members[first : first + TOGETHER]]
            for start in range(0, first + 1, TOGETHER):
                similarities = block @ vectors[members[start : start + TOGETHER]].T
                for strip in range(0, len(block), STRIP):
                    cosines = similarities[strip : strip + STRIP]
                    mine, theirs = np.nonzero(cosines >= similarity)
                    cosine = cosines[mine, theirs]
                    mine, theirs = members[first + strip + mine], members[start + theirs]
                    apart = theirs < mine
                    mine, theirs, cosine = mine[apart], theirs[apart], cosine[apart]
                    np.maximum.at(likeness, mine, cosine)
                    np.maximum.at(likeness, theirs, cosine)
                    join_pairs(parents, theirs, mine)
    settle(parents)
    return parents, likeness


def _clusters(vectors: np.ndarray) -> list[np.ndarray]:
    count = len(vectors)
    wanted = -(-count * NEAREST // TOGETHER)
    if count <= 2 * TOGETHER:
        return [np.arange(count)] if count else []
    centroids = _centroids(vectors[np.unique(np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64))], wanted)
    near = np.concatenate(
        [
            np.argpartition(-(vectors[first : first + TOGETHER] @ centroids.T), NEAREST - 1, axis=1)[:, :NEAREST]
            for first in range(0, count, TOGETHER)
        ]
    )
    owner = np.repeat(np.arange(count), NEAREST)
    order = np.argsort(near.reshape(-1), kind="stable")
    bounds = np.searchsorted(near.reshape(-1)[order], np.arange(wanted + 1))
    return [owner[order[a:b]] for a, b in itertools.pairwise(bounds) if b - a > 1]


def _centroids(sample: np.ndarray, wanted: int) -> np.ndarray:
    centroids = sample[np.linspace(0, len(sample) - 1, wanted).astype(np.int64)].copy()
    for _ in range(ROUNDS):
        nearest = np.concatenate(
            [np.argmax(sample[first : first + TOGETHER] @ centroids.T, axis=1) for first in range(0, len(sample), TOGETHER)]
        )
        sums = np.zeros_like(centroids)
        np.add.at(sums, nearest, sample)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centroids = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centroids)
    return centroids
