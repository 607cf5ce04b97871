"""The compiled loops over bytes, words and shingles. `shingles` and others call them with Arrow's buffers.

A word's hash is a polynomial over its code points (Karp, Rabin 1987), an n-gram's hash is a polynomial over its words' hashes,
rolled from word to word; both end in the finaliser of MurmurHash3 (Appleby), so that every bit counts. All arithmetic is
modulo 2**64. Texts are one buffer of UTF-8; `edges` holds each text's offsets in it.

Import this module inside functions only: it loads numba.
"""

from __future__ import annotations

import numpy as np

from model_ops.compiled import compiled
from resources.curating.alphabet import ALONE, UNSETTLED

_WORD = np.uint64(0x9E3779B97F4A7C15)
_GRAM = np.uint64(0xD1B54A32D192ED03)
_START = np.uint64(0x2545F4914F6CDD1D)
_ANSWER = np.uint64(0xA5A5A5A5_5A5A5A5A)
_CODE = np.uint32(0x1FFFFF)
_ALONE, _UNSETTLED = np.uint32(ALONE), np.uint32(UNSETTLED)  # compiled in: a change there must touch this file too
_BLOCK = 2048
"""Shingles permuted at a time: their hashes fit in a core's L1 cache."""


@compiled
def mix(value):
    """MurmurHash3's 64-bit finaliser: a bijection in which every input bit moves every output bit."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@compiled
def _code_point(content, at, stop):
    """The non-ASCII character at `at` and the position of the next one; U+FFFD for invalid bytes."""
    lead = np.uint32(content[at])
    length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if lead < 0xC2 or at + length > stop:
        return np.uint32(0xFFFD), at + 1
    code = lead & np.uint32((1 << (7 - length)) - 1)
    for step in range(1, length):
        code = (code << np.uint32(6)) | (np.uint32(content[at + step]) & np.uint32(0x3F))
    return np.uint32(code), at + length


@compiled
def _read_words(content, start, stop, alphabet, words):
    """Fills `words` with the hashes of a text's words, in order, and returns their number."""
    count = 0
    value = _START
    inside = False
    at = start
    while at < stop:
        byte = content[at]
        if byte < 0x80:
            letter = alphabet[byte]
            at += 1
        else:
            code, at = _code_point(content, at, stop)
            letter = alphabet[code] if code < len(alphabet) else np.uint32(0)
        alone = (letter & _ALONE) != 0
        if letter != 0 and not alone:
            value = (value + np.uint64(letter & _CODE)) * _WORD
            inside = True
            continue
        if inside:
            words[count] = mix(value)
            count += 1
            value = _START
            inside = False
        if alone:
            words[count] = mix((_START + np.uint64(letter & _CODE)) * _WORD)
            count += 1
    if inside:
        words[count] = mix(value)
        count += 1
    return count


@compiled
def most_words(edges):
    """Upper bound on the number of words in a text: one for every two bytes, and one at the end."""
    longest = 0
    for text in range(len(edges) - 1):
        longest = max(longest, edges[text + 1] - edges[text])
    return longest // 2 + 2


@compiled
def unsettled(content, edges, alphabet):
    """Marks the texts that may not be in Unicode's form NFC."""
    found = np.zeros(len(edges) - 1, dtype=np.bool_)
    for text in range(len(found)):
        at = edges[text]
        stop = edges[text + 1]
        while at < stop and not found[text]:
            if content[at] < 0x80:
                at += 1
                continue
            code, at = _code_point(content, at, stop)
            found[text] = code < len(alphabet) and (alphabet[code] & _UNSETTLED) != 0
    return found


@compiled
def words_of_texts(content, edges, alphabet):
    """The hashes of all texts' words, and the number of words in each text."""
    words = np.empty((edges[-1] - edges[0]) // 2 + 2 * len(edges), dtype=np.uint64)
    counts = np.empty(len(edges) - 1, dtype=np.int64)
    total = 0
    for text in range(len(counts)):
        counts[text] = _read_words(content, edges[text], edges[text + 1], alphabet, words[total:])
        total += counts[text]
    return words[:total].copy(), counts


@compiled
def _add_grams(words, count, size, salt, grams, at):
    """Adds one hash for each run of `size` words to `grams`, from place `at`; returns the next free place."""
    power = np.uint64(1)
    for _ in range(size):
        power *= _GRAM
    value = np.uint64(0)
    for word in range(count):
        value = value * _GRAM + words[word]
        if word >= size:
            value -= words[word - size] * power
        if word >= size - 1:
            grams[at] = mix(value) ^ salt
            at += 1
    return at


@compiled
def _read_shingles(asked, asked_edges, said, said_edges, row, size, alphabet, words, grams):
    """A row's shingles: its question's, then its answer's with another hash. Returns their number."""
    count = _read_words(asked, asked_edges[row], asked_edges[row + 1], alphabet, words)
    filled = _add_grams(words, count, size, np.uint64(0), grams, 0)
    count = _read_words(said, said_edges[row], said_edges[row + 1], alphabet, words)
    return _add_grams(words, count, size, _ANSWER, grams, filled)


@compiled
def sketch(asked, asked_edges, said, said_edges, size, alphabet, multipliers, summands, bands):
    """For each row: one 32-bit hash per band of its MinHash signature, and whether it has any shingle."""
    rows = len(asked_edges) - 1
    hashes = len(multipliers)
    width = hashes // bands
    words = np.empty(max(most_words(asked_edges), most_words(said_edges)), dtype=np.uint64)
    grams = np.empty(most_words(asked_edges) + most_words(said_edges), dtype=np.uint64)
    high = np.empty(_BLOCK, dtype=np.uint32)
    least = np.empty(hashes, dtype=np.uint32)
    into = np.zeros((rows, bands), dtype=np.uint32)
    filled = np.zeros(rows, dtype=np.bool_)
    for row in range(rows):
        count = _read_shingles(asked, asked_edges, said, said_edges, row, size, alphabet, words, grams)
        if count == 0:
            continue
        filled[row] = True
        least[:] = np.uint32(0xFFFFFFFF)
        for first in range(0, count, _BLOCK):
            block = min(count - first, _BLOCK)
            for at in range(block):
                high[at] = np.uint32(grams[first + at] >> np.uint64(32))
            for k in range(hashes):
                multiplier = multipliers[k]
                summand = summands[k]
                lowest = least[k]
                for at in range(block):
                    lowest = min(lowest, np.uint32(np.uint32(high[at] * multiplier) + summand))
                least[k] = lowest
        for band in range(bands):
            value = np.uint64(band + 1)
            for k in range(band * width, (band + 1) * width):
                value = mix(value * _GRAM + np.uint64(least[k]))
            into[row, band] = np.uint32(value >> np.uint64(32))
    return into, filled


@compiled
def _table_size(count):
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@compiled
def _insert(table, mask, value):
    """Inserts a value into an open-addressing table of uint64 (0: empty); False if it was there already."""
    place = value & mask
    while table[place] != 0:
        if table[place] == value:
            return False
        place = (place + np.uint64(1)) & mask
    table[place] = value
    return True


@compiled
def _holds(table, mask, value):
    place = value & mask
    while table[place] != 0:
        if table[place] == value:
            return True
        place = (place + np.uint64(1)) & mask
    return False


@compiled
def shingle_sets(asked, asked_edges, said, said_edges, size, alphabet):
    """Each row's distinct shingles, in order of appearance, and their number per row."""
    rows = len(asked_edges) - 1
    most = most_words(asked_edges) + most_words(said_edges)
    words = np.empty(most, dtype=np.uint64)
    grams = np.empty(most, dtype=np.uint64)
    table = np.zeros(_table_size(most), dtype=np.uint64)
    values = np.empty(
        (asked_edges[-1] - asked_edges[0] + said_edges[-1] - said_edges[0]) // 2 + 4 * rows + 4, dtype=np.uint64
    )
    counts = np.empty(rows, dtype=np.int64)
    total = 0
    for row in range(rows):
        count = _read_shingles(asked, asked_edges, said, said_edges, row, size, alphabet, words, grams)
        places = _table_size(count)
        table[:places] = np.uint64(0)
        mask = np.uint64(places - 1)
        first = total
        for at in range(count):
            value = max(grams[at], np.uint64(1))
            if _insert(table, mask, value):
                values[total] = value
                total += 1
        counts[row] = total - first
    return values[:total].copy(), counts


@compiled
def root_of(parents, node):
    """The smallest node of a node's group, with path compression."""
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


@compiled
def join(parents, one, other):
    """Joins the groups of two nodes; their smallest node becomes the root. False if they are one group already."""
    one = root_of(parents, one)
    other = root_of(parents, other)
    if one == other:
        return False
    if one < other:
        parents[other] = one
    else:
        parents[one] = other
    return True


@compiled
def shares_bucket(keys, shared):
    """Marks the rows whose band hash another row has too. keys: sorted; upper 32 bits the hash, lower 32 bits the row."""
    for at in range(1, len(keys)):
        if keys[at] >> np.uint64(32) == keys[at - 1] >> np.uint64(32):
            shared[keys[at] & np.uint64(0xFFFFFFFF)] = True
            shared[keys[at - 1] & np.uint64(0xFFFFFFFF)] = True


@compiled
def _shared_shingles(table, mask, values, start, stop, needed):
    """Number of a set's values that the table holds; stops early, with a smaller number, once `needed` is out of reach."""
    found = 0
    spare = stop - start - needed
    for at in range(start, stop):
        if _holds(table, mask, values[at]):
            found += 1
        else:
            spare -= 1
            if spare < 0:
                return found
    return found


@compiled
def link_buckets(keys, set_of, offsets, values, threshold, best, before, parents, likeness, edges):
    """Compares rows that share a bucket of one band and joins those whose Jaccard similarity reaches the threshold.

    keys: sorted; upper 32 bits the band's hash, lower 32 bits the row. set_of: index of a row's set in `values`. A row is
    compared with the `best` first rows of its bucket and the `before` rows before it, but not with rows of its own group.
    Joined pairs are written to `edges`; returns how many. `likeness` keeps each row's highest similarity.
    """
    longest = 0
    for one in range(len(offsets) - 1):
        longest = max(longest, offsets[one + 1] - offsets[one])
    table = np.zeros(_table_size(longest), dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    joined = 0
    first = 0
    while first < len(keys):
        last = first + 1
        while last < len(keys) and keys[last] >> np.uint64(32) == keys[first] >> np.uint64(32):
            last += 1
        for mine in range(first + 1, last):
            row = np.int64(keys[mine] & low)
            ours = set_of[row]
            size = offsets[ours + 1] - offsets[ours]
            mask = np.uint64(_table_size(size) - 1)
            ready = False
            head = min(first + best, mine)
            for step in range(head - first + mine - max(head, mine - before)):
                other = first + step if first + step < head else max(head, mine - before) + step - (head - first)
                mate = np.int64(keys[other] & low)
                theirs = set_of[mate]
                length = offsets[theirs + 1] - offsets[theirs]
                if min(size, length) < threshold * max(size, length) or root_of(parents, row) == root_of(parents, mate):
                    continue
                if not ready:
                    table[: mask + np.uint64(1)] = np.uint64(0)
                    for at in range(offsets[ours], offsets[ours + 1]):
                        _insert(table, mask, values[at])
                    ready = True
                needed = np.int64(np.ceil(threshold * (size + length) / (1.0 + threshold) - 1e-6))
                shared = _shared_shingles(table, mask, values, offsets[theirs], offsets[theirs + 1], needed)
                if shared >= threshold * (size + length - shared):
                    similarity = shared / (size + length - shared)
                    likeness[row] = max(likeness[row], similarity)
                    likeness[mate] = max(likeness[mate], similarity)
                    join(parents, row, mate)
                    edges[joined, 0] = mate
                    edges[joined, 1] = row
                    joined += 1
        first = last
    return joined


@compiled
def join_pairs(parents, one, other):
    """Joins one[i] and other[i] for every i."""
    for at in range(len(one)):
        join(parents, one[at], other[at])


@compiled
def settle(parents):
    """Makes every node's parent the least node of its group."""
    for node in range(len(parents)):
        parents[node] = root_of(parents, node)


@compiled
def hash_table(values):
    """An open-addressing table of distinct uint64 values, none of them 0."""
    table = np.zeros(_table_size(len(values)), dtype=np.uint64)
    for value in values:
        _insert(table, np.uint64(len(table) - 1), value)
    return table


@compiled
def find_grams(content, edges, alphabet, sizes, whole, seen, shift, table, hits):
    """Finds the wanted n-grams in each text: rows (text, gram) in `hits`; returns their number, which may exceed the length of
    `hits`.

    sizes: the n-grams' sizes in words. whole: for each size, whether an n-gram counts only if it is the whole text. `seen` has
    a bit for every value of `gram >> shift` of a wanted n-gram; `table` holds the wanted n-grams.
    """
    most = most_words(edges)
    words = np.empty(most, dtype=np.uint64)
    sums = np.zeros(most + 1, dtype=np.uint64)
    powers = np.ones(len(sizes), dtype=np.uint64)
    for at in range(len(sizes)):
        for _ in range(sizes[at]):
            powers[at] *= _GRAM
    mask = np.uint64(len(table) - 1)
    found = 0
    for text in range(len(edges) - 1):
        count = _read_words(content, edges[text], edges[text + 1], alphabet, words)
        for word in range(count):
            sums[word + 1] = sums[word] * _GRAM + words[word]
        for at in range(len(sizes)):
            size = sizes[at]
            if whole[at] and count != size:
                continue
            for word in range(count - size + 1):
                gram = mix(sums[word + size] - sums[word] * powers[at]) ^ np.uint64(size)
                high = gram >> shift
                if (seen[high >> np.uint64(6)] >> (high & np.uint64(63))) & np.uint64(1) and _holds(table, mask, gram):
                    if found < len(hits):
                        hits[found, 0] = np.uint64(text)
                        hits[found, 1] = gram
                    found += 1
    return found
