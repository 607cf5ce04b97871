"""Grouping against brute force; crowds, copies and chains."""

import itertools
import random
import time

import numpy as np
import pyarrow as pa
import pytest

from resources.curating.curation import NearDuplicates
from resources.curating.duplicates.near_duplicates import ShingleFile, group_turns, link, share_a_bucket
from resources.curating.duplicates.union_find import join_pairs, settle
from resources.curating.shingles import RaggedLists

SETTINGS = NearDuplicates()


def groups_of(one, other, nodes):
    """Connected components: for each of the nodes 0..nodes-1, the smallest node of its component."""
    parents = np.arange(nodes)
    join_pairs(parents, np.array(one), np.array(other))
    settle(parents)
    return parents


def jaccard(one, other):
    return len(one & other) / len(one | other)


def grams(text, size=5):
    words = text.split()
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


def grouped(texts, similarity=0.7, settings=SETTINGS):
    """Groups of answers to nothing in particular."""
    texts = pa.array(texts, pa.large_string())
    nothing = pa.nulls(len(texts), pa.large_string())
    return group_turns(nothing, texts, settings.model_copy(update={"similarity": similarity}))


def edited(words, rng, count, vocabulary):
    words = words.copy()
    for _ in range(count):
        place = rng.randrange(len(words))
        match rng.randrange(3):
            case 0:
                del words[place]
            case 1:
                words[place] = rng.choice(vocabulary)
            case 2:
                words.insert(place, rng.choice(vocabulary))
    return words


def edited_families(seed, families, copies, words, edits):
    rng = random.Random(seed)
    vocabulary = [f"w{number}" for number in range(3_000)]
    texts = []
    for _ in range(families):
        original = rng.choices(vocabulary, k=words)
        texts += [" ".join(original)]
        texts += [" ".join(edited(original, rng, rng.randrange(edits + 1), vocabulary)) for _ in range(copies)]
    rng.shuffle(texts)
    return texts


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.9])
def test_groups_are_those_of_all_true_pairs(similarity):
    """One hash a band, 64 bands: a pair that escapes banding is out of the question, so brute force must agree."""
    texts = edited_families(1, families=12, copies=6, words=80, edits=8)
    sets = [grams(text) for text in texts]
    pairs = [(a, b) for a, b in itertools.combinations(range(len(texts)), 2) if jaccard(sets[a], sets[b]) >= similarity]
    links = grouped(texts, similarity, NearDuplicates(bands=64, rows=1))
    a, b = np.array(pairs).T
    assert links.best.tolist() == groups_of(a, b, len(texts)).tolist()
    assert 10 < len(set(links.best.tolist())) < len(texts)
    for row, likeness in enumerate(links.likeness):
        mates = [jaccard(sets[row], sets[other]) for pair in pairs if row in pair for other in set(pair) - {row}]
        assert (likeness > 0) == bool(mates) and (not mates or similarity <= likeness <= max(mates))


def test_every_link_is_verified_and_recall_is_what_the_bands_promise():
    texts = edited_families(2, families=400, copies=2, words=120, edits=6)
    sets = [grams(text) for text in texts]
    links = grouped(texts)
    assert all(jaccard(sets[a], sets[b]) >= 0.7 for a, b in links.pairs)
    by_first = {}
    for row, text in enumerate(sets):
        for gram in text:
            by_first.setdefault(gram, set()).add(row)
    near = {pair for rows in by_first.values() for pair in itertools.combinations(sorted(rows), 2)}
    true = [pair for pair in near if jaccard(sets[pair[0]], sets[pair[1]]) >= 0.7]
    found = sum(links.best[a] == links.best[b] for a, b in true)
    assert len(true) > 300 and found / len(true) >= 0.98


def test_ten_thousand_copies_of_one_boilerplate_are_one_group():
    rng = random.Random(3)
    body = [f"term{number}" for number in range(150)]
    texts = []
    for number in range(10_000):
        words = body.copy()
        words[rng.randrange(150)] = f"name{number}"
        texts.append(" ".join(words))
    grouped(texts[:10])
    began = time.process_time()
    links = grouped(texts)
    seconds = time.process_time() - began
    assert set(links.best.tolist()) == {0} and len(links.pairs) == 9_999
    assert seconds < 20, "a bucket of n rows must not cost n * n comparisons"


def test_a_crowd_that_is_not_alike_costs_no_more_than_its_share():
    """One band hash in common and nothing else: each row meets 40 others, finds nobody, and stays alone."""
    count = 20_000
    bands = np.zeros((count, 2), np.uint32)
    bands[:, 1] = np.arange(count)
    values = np.arange(1, 20 * count + 1, dtype=np.uint64)
    sets = RaggedLists(values, np.repeat(np.arange(count + 1) * 20, [1] + [3] * count))  # questions without words of answers
    links = link(bands, share_a_bucket(bands), sets, NearDuplicates(bands=2))
    assert len(links.pairs) == 0 and links.best.tolist() == list(range(count))


def test_a_chain_is_one_group_named_by_its_best():
    words = [f"w{number}" for number in range(200)]
    texts = [" ".join(words[start : start + 100]) for start in range(0, 60, 10)]
    links = grouped(texts, 0.7, NearDuplicates(bands=64, rows=1))
    assert links.best.tolist() == [0] * 6
    assert jaccard(grams(texts[0]), grams(texts[5])) < 0.4


def test_texts_without_shingles_stand_alone_between_others():
    copy = "one two three four five six seven"
    links = grouped(["a b", copy, "", copy, "one two"])
    assert links.best.tolist() == [0, 1, 2, 1, 4] and links.pairs.tolist() == [[1, 3]] and links.likeness[3] == 1


def test_nobody_to_compare():
    for texts in ([], ["one two three four five six"], ["too short", "too short", "one two three four five six", ""]):
        links = grouped(texts)
        assert links.best.tolist() == list(range(len(texts))) and not links.likeness.any()


def test_no_shingle_set_is_lost_between_file_and_memory():
    with ShingleFile() as sets:
        sets.add(np.array([1, 2, 3], np.uint64), np.array([2, 0, 1]))
        sets.add(np.array([4], np.uint64), np.array([1]))
        found = sets.read()
    assert found.values.tolist() == [1, 2, 3, 4] and found.offsets.tolist() == [0, 2, 2, 3, 4]
