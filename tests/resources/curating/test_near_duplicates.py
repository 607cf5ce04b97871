"""Grouping against brute force; crowds, copies and chains."""

import itertools
import random
import time
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.curating import shingles
from resources.curating.curation import NearDuplicates
from resources.curating.duplicates import near_duplicates as minhash
from resources.curating.duplicates.near_duplicates import ShingleFile, group_turns, link, share_a_bucket, signatures, stamp
from resources.curating.duplicates.union_find import join_pairs, settle
from resources.curating.shingles import RaggedLists, ngrams, shingle_sets, text_buffer, word_hashes

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


LETTERS = "ab_9 .\n-éBÉ\u0301e水ひไทยß한\u1112\u1161İ\U0001f600٣\u00a0、"
TEXTS = st.lists(st.one_of(st.none(), st.text(alphabet=LETTERS, max_size=40), st.text(max_size=12)), max_size=12)

MASK = (1 << 64) - 1
PINNED_WORDS = [16483586257954048320, 17156461680004235377, 8664892381459314347]
PINNED_SIGNATURE = [-519976278, -459099639, -1390493830]


def is_alone(character):
    names = (
        "CJK UNIFIED",
        "CJK COMPATIBILITY IDEO",
        "IDEOGRAPHIC",
        "VERTICAL IDEO",
        "HANGZHOU",
        "HIRAGANA",
        "HENTAIGANA",
        "KATAKANA",
        "HALFWIDTH KATAKANA",
        "COMBINING KATAKANA",
        "THAI",
        "LAO",
        "KHMER",
        "MYANMAR",
    )
    return unicodedata.name(character, "").startswith(names)


def words_of(text):
    """Lists of lower-case letters, the slow way."""
    words, word = [], ""
    for character in unicodedata.normalize("NFC", text or ""):
        if unicodedata.category(character)[0] in "LNM" or character == "_":
            if is_alone(character):
                words += [word, character]
                word = ""
            else:
                word += character.lower()[0]
        else:
            words.append(word)
            word = ""
    return [word for word in [*words, word] if word]


def mix(value):
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ (value >> 33)


def word_hash(word):
    value = 0x2545F4914F6CDD1D
    for character in word:
        value = (value + ord(character)) * 0x9E3779B97F4A7C15 & MASK
    return mix(value)


def gram_hash(words):
    value = 0
    for word in words:
        value = (value * 0xD1B54A32D192ED03 + word_hash(word)) & MASK
    return mix(value)


def shingles_of(question, answer, size):
    asked, said = words_of(question), words_of(answer)
    runs = [gram_hash(asked[at : at + size]) for at in range(len(asked) - size + 1)]
    return runs + [gram_hash(said[at : at + size]) ^ 0xA5A5A5A55A5A5A5A for at in range(len(said) - size + 1)]


def pieces(ragged):
    return [ragged.values[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]


@pytest.mark.parametrize("character", ["\ufe0f", "\U000e0100", "\U000e01ef"])
def test_a_selector_of_variants_is_a_mark_wherever_it_stands(character):
    """U+E0100 and on lie far above all letters: they were taken for spaces."""
    texts = [character, f"a{character}b", f"水{character}水"]
    assert pieces(word_hashes(pa.array(texts))) == [[word_hash(word) for word in words_of(text)] for text in texts]
    assert pieces(word_hashes(pa.array(["a\U000e0001b", "a\U0010ffffb"]))) == [[word_hash("a"), word_hash("b")]] * 2


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, size=st.integers(1, 5), group=st.sampled_from([1, 16, 1 << 22]))
def test_law_words_and_ngrams_are_those_of_plain_python(texts, size, group):
    whole, shingles.GROUP_BYTES = shingles.GROUP_BYTES, group
    try:
        found = word_hashes(pa.array(texts, pa.string()))
    finally:
        shingles.GROUP_BYTES = whole
    expected = [words_of(text) for text in texts]
    assert pieces(found) == [[word_hash(word) for word in words] for words in expected]
    grams = [[gram_hash(words[at : at + size]) for at in range(len(words) - size + 1)] for words in expected]
    assert pieces(ngrams(found, size)) == grams


@settings(max_examples=60, deadline=None)
@given(texts=TEXTS, size=st.integers(1, 4))
def test_law_signatures_and_sets_are_those_of_plain_python(texts, size):
    asked, said = texts, texts[::-1]
    runs = [shingles_of(*turn, size) for turn in zip(asked, said, strict=True)]
    chosen = NearDuplicates(ngram=size, bands=3, rows=2)
    generator = np.random.Generator(np.random.PCG64(1997))
    multipliers = [int(number) | 1 for number in generator.integers(0, 1 << 32, 6, dtype=np.uint32)]
    summands = [int(number) for number in generator.integers(0, 1 << 32, 6, dtype=np.uint32)]
    expected = []
    for row in runs:
        least = [
            min(((value >> 32) * factor + summand) % (1 << 32) for value in row) if row else 0
            for factor, summand in zip(multipliers, summands, strict=True)
        ]
        bands = []
        for band in range(3):
            value = band + 1
            for number in least[2 * band : 2 * band + 2]:
                value = mix((value * 0xD1B54A32D192ED03 + number) & MASK)
            bands.append(int(np.uint32(value >> 32).astype(np.int32)))
        expected.append([stamp(chosen), *bands] if row else [])
    columns = pa.array(asked, pa.string()), pa.array(said, pa.string())
    assert signatures(*columns, chosen).to_pylist() == expected
    sets = shingles.RaggedLists.of_groups(list(shingle_sets(*map(text_buffer, columns), size)))
    wanted = []
    for question, answer in zip(asked, said, strict=True):
        wanted += [list(dict.fromkeys(shingles_of(question, "", size))), list(dict.fromkeys(shingles_of("", answer, size)))]
        words = {word_hash(word) >> 1 for word in words_of(question)} | {
            word_hash(word) >> 1 | 1 << 63 for word in words_of(answer)
        }  # the highest bit marks the answer's
        wanted += [sorted(words)]
    assert pieces(sets) == wanted


def test_hashes_are_the_same_in_every_version():
    """Signatures are stored: a change of these numbers needs a new minhash._VERSION, and every day is cleaned again."""
    assert word_hashes(pa.array(["the mill", "wheel"])).values.tolist() == PINNED_WORDS
    chosen = NearDuplicates(ngram=1, bands=2, rows=3)
    assert signatures(pa.array([""]), pa.array(["The mill"]), chosen).to_pylist() == [PINNED_SIGNATURE]
    assert minhash._VERSION == 2


def test_a_stamp_for_every_setting_that_makes_other_hashes():
    settings = [NearDuplicates(), *(NearDuplicates(**{name: 7}) for name in ("ngram", "bands", "rows"))]
    assert len({stamp(one) for one in settings}) == 4
    assert stamp(NearDuplicates(similarity=0.9)) == stamp(NearDuplicates())


def test_slices_and_chunks_of_arrow_arrays():
    texts = pa.array(["zero", "one two", None, "three"])
    assert pieces(word_hashes(texts.slice(1)))[0] == pieces(word_hashes(texts))[1]
    assert pieces(word_hashes(pa.chunked_array([texts, texts])))[5] == pieces(word_hashes(texts))[1]


@pytest.mark.parametrize("shared", [10, 50, 90])
def test_signatures_estimate_jaccard(shared):
    rng = random.Random(shared)
    pool = [f"w{n}" for n in range(4_000)]
    estimates, truths = [], []
    nothing = pa.array(["", ""])
    for _ in range(30):
        mine = rng.sample(pool, 200)
        other = mine[: 2 * shared] + rng.sample(pool, 200 - 2 * shared)
        a, b = set(mine), set(other)
        truths.append(len(a & b) / len(a | b))
        texts = pa.array([" ".join(mine), " ".join(other)])
        one, two = signatures(nothing, texts, NearDuplicates(ngram=1, bands=128, rows=1)).to_pylist()
        estimates.append(np.mean(np.array(one[1:]) == np.array(two[1:])))
    assert abs(np.mean(estimates) - np.mean(truths)) < 0.03


def test_no_shingle_no_signature():
    texts = pa.array(["", "a b c", "a b c d e", None])
    found = signatures(pa.nulls(4, pa.string()), texts, NearDuplicates(bands=2, rows=4))
    assert [len(one) for one in found.to_pylist()] == [0, 0, 3, 0]
    assert signatures(texts[:0], texts[:0], NearDuplicates()).to_pylist() == []


@pytest.mark.parametrize(
    "text",
    ["word " * 500_000, "水" * 700_000, "1 2 3 " * 500_000, "\u0301" * 500_000, "e\u0301 " * 300_000, "\0\x01" * 999],
    ids=["prose", "chinese", "numbers", "marks", "unsettled", "controls"],
)
def test_long_and_odd_texts(text):
    texts = pa.array([text, "", "a b c d e f"], pa.large_string())
    found = signatures(texts, texts, NearDuplicates()).to_pylist()
    assert found[2] == signatures(texts.slice(2), texts.slice(2), NearDuplicates()).to_pylist()[0] and found[1] == []
    assert word_hashes(texts).lengths[0] == len(words_of(text))
