"""The compiled loops over bytes, words and shingles (numba: import inside functions only). A word's hash is a polynomial over
its code points (Karp, Rabin 1987), an n-gram's one over its words' hashes, rolled; both end in the finaliser of MurmurHash3
(Appleby), modulo 2**64. Texts are one buffer of UTF-8; `edges` holds each text's offsets in it."""

import numpy as np

from model_ops.machine import compiled
from resources.curating.alphabet import ALONE, UNSETTLED
from resources.curating.duplicates.union_find import join, root_of

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
def _read_words(content, start, stop, alphabet, words, ends=None):
    """Fills `words` with the hashes of a text's words, in order, and returns their number. ends: filled with the places where
    the words have been read."""
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
            if ends is not None:
                ends[count] = at
            count += 1
            value = _START
            inside = False
        if alone:
            words[count] = mix((_START + np.uint64(letter & _CODE)) * _WORD)
            if ends is not None:
                ends[count] = at
            count += 1
    if inside:
        words[count] = mix(value)
        if ends is not None:
            ends[count] = at
        count += 1
    return count


@compiled
def word_ends(content, start, stop, alphabet):
    """Where each word of a text has been read: behind the sign that ends it."""
    words = np.empty((stop - start) // 2 + 2, dtype=np.uint64)
    ends = np.empty(len(words), dtype=np.int64)
    return ends[: _read_words(content, start, stop, alphabet, words, ends)] - start


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
    marked = np.zeros(len(edges) - 1, dtype=np.bool_)
    for text in range(len(marked)):
        at = edges[text]
        stop = edges[text + 1]
        while at < stop and not marked[text]:
            if content[at] < 0x80:
                at += 1
                continue
            code, at = _code_point(content, at, stop)
            marked[text] = code < len(alphabet) and (alphabet[code] & _UNSETTLED) != 0
    return marked


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
def _read_turn(asked, asked_edges, said, said_edges, row, size, alphabet, words, grams):
    """A row's shingles: its question's, then its answer's with another hash. Returns their number in the question and in all,
    and the number of the words of question and answer, which stay in `words`."""
    asked_count = _read_words(asked, asked_edges[row], asked_edges[row + 1], alphabet, words)
    asked_grams = _add_grams(words, asked_count, size, np.uint64(0), grams, 0)
    said_count = _read_words(said, said_edges[row], said_edges[row + 1], alphabet, words[asked_count:])
    all_grams = _add_grams(words[asked_count:], said_count, size, _ANSWER, grams, asked_grams)
    return asked_grams, all_grams, asked_count, said_count


@compiled
def sketch(asked, asked_edges, said, said_edges, size, alphabet, multipliers, summands, bands):
    """For each row: one 32-bit hash per band of its MinHash signature, and whether it has any shingle."""
    rows = len(asked_edges) - 1
    words = np.empty(most_words(asked_edges) + most_words(said_edges), dtype=np.uint64)
    grams = np.empty(len(words), dtype=np.uint64)
    high = np.empty(_BLOCK, dtype=np.uint32)
    least = np.empty(len(multipliers), dtype=np.uint32)
    into = np.zeros((rows, bands), dtype=np.uint32)
    filled = np.zeros(rows, dtype=np.bool_)
    for row in range(rows):
        _, count, _, _ = _read_turn(asked, asked_edges, said, said_edges, row, size, alphabet, words, grams)
        if count == 0:
            continue
        filled[row] = True
        _sketch_row(grams, count, multipliers, summands, high, least, into[row])
    return into, filled


@compiled
def _sketch_row(grams, count, multipliers, summands, high, least, into):
    """Fills `into` with one hash per band of the MinHash signature of `count` shingles; `high` and `least` are work space."""
    bands = len(into)
    width = len(multipliers) // bands
    least[:] = np.uint32(0xFFFFFFFF)
    for first in range(0, count, _BLOCK):
        block = min(count - first, _BLOCK)
        for at in range(block):
            high[at] = np.uint32(grams[first + at] >> np.uint64(32))
        for k in range(len(multipliers)):
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
        into[band] = np.uint32(value >> np.uint64(32))


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
def hash_table(values):
    """An open-addressing table of distinct uint64 values, none of them 0."""
    table = np.zeros(_table_size(len(values)), dtype=np.uint64)
    for value in values:
        _insert(table, np.uint64(len(table) - 1), value)
    return table


@compiled
def shingle_sets(asked, asked_edges, said, said_edges, size, alphabet):
    """Three lists for each row, and their lengths: the question's distinct shingles and the answer's, in order of appearance,
    and the distinct words of both, in order of their hash: its highest bit is set for the answer's."""
    rows = len(asked_edges) - 1
    most = most_words(asked_edges) + most_words(said_edges)
    words = np.empty(most, dtype=np.uint64)
    grams = np.empty(most, dtype=np.uint64)
    table = np.zeros(_table_size(most), dtype=np.uint64)
    values = np.empty(asked_edges[-1] - asked_edges[0] + said_edges[-1] - said_edges[0] + 8 * rows + 8, dtype=np.uint64)
    counts = np.zeros((rows, 3), dtype=np.int64)
    total = 0
    for row in range(rows):
        turn = _read_turn(asked, asked_edges, said, said_edges, row, size, alphabet, words, grams)
        asked_grams, all_grams, first, count = turn
        places = _table_size(all_grams)
        table[:places] = np.uint64(0)
        mask = np.uint64(places - 1)
        for at in range(all_grams):
            value = max(grams[at], np.uint64(1))
            if _insert(table, mask, value):
                values[total] = value
                total += 1
                counts[row, 0 if at < asked_grams else 1] += 1
        for at in range(first + count):
            words[at] = words[at] >> np.uint64(1) | np.uint64(at >= first) << np.uint64(63)
        both = np.unique(words[: first + count])
        values[total : total + len(both)] = both
        total += len(both)
        counts[row, 2] = len(both)
    return values[:total].copy(), counts


@compiled
def _shared_words(values, offsets, ours, theirs, said, similarity):
    """Number of words shared in answers (said: 1) or questions (0); -1 if these are less alike than `similarity` (Jaccard)."""
    one, one_stop = offsets[3 * ours + 2], offsets[3 * ours + 3]
    other, other_stop = offsets[3 * theirs + 2], offsets[3 * theirs + 3]
    total = shared = 0
    while one < one_stop or other < other_stop:
        left = values[one] if one < one_stop else ~np.uint64(0)
        right = values[other] if other < other_stop else ~np.uint64(0)
        if min(left, right) >> np.uint64(63) == np.uint64(said):
            total += 1
            shared += left == right
        one += left <= right
        other += right <= left
    return shared if shared >= similarity * total else -1


@compiled
def _other_example(values, offsets, one, other, similarity, edge, stretch):
    """Whether two rows that share text of their questions are different examples: their answers differ, or more than `stretch`
    shingles in a row are in one question only, and the answers say less than that."""
    said = _shared_words(values, offsets, one, other, 1, similarity)
    if said < 0:
        return True
    differ = longest = 0
    for _ in range(2):
        table = hash_table(values[offsets[3 * one] : offsets[3 * one + 1]])
        run = edge
        for at in range(offsets[3 * other], offsets[3 * other + 1]):
            run = 0 if _holds(table, np.uint64(len(table) - 1), values[at]) else run + 1
            differ += run > 0
            longest = max(longest, run + edge if run and at == offsets[3 * other + 1] - 1 else run)
        one, other = other, one
    return longest > stretch and said < differ


@compiled
def mark_common(values, offsets, turn, turns, similarity, edge, stretch, common):
    """Marks the shingles of questions that different examples share: each row is compared with the first that has the shingle.
    Of `turns` calls, each looks at a share of the hashes, so that its table stays small."""
    rows = len(offsets) // 3
    # of an entry, the upper 32 bits are the hash's, then a bit is the mark, and the others are the row + 1
    table = np.zeros(_table_size(len(values) // turns + len(values) // 64), dtype=np.uint64)
    mask = np.uint64(len(table) - 1)
    marked = np.uint64(0x80000000)
    for sweep in range(2):
        for row in range(rows):
            met = -1
            differs = False
            for at in range(offsets[3 * row], offsets[3 * row + 1]):
                value = values[at]
                if (value >> np.uint64(33)) % np.uint64(turns) != np.uint64(turn):
                    continue
                place = value & mask
                while table[place] != 0 and table[place] >> np.uint64(32) != value >> np.uint64(32):
                    place = (place + np.uint64(1)) & mask
                entry = table[place]
                if sweep == 1:
                    common[at] = entry & marked != 0
                elif entry == 0:
                    table[place] = (value >> np.uint64(32) << np.uint64(32)) | np.uint64(row + 1)
                elif entry & marked == 0:
                    first = np.int64(entry & np.uint64(0x7FFFFFFF)) - 1
                    if first != met:
                        met = first
                        differs = _other_example(values, offsets, row, met, similarity, edge, stretch)
                    if differs:
                        table[place] = entry | marked


@compiled
def sketch_sets(values, offsets, common, bands_of, multipliers, summands):
    """Sketches rows with common shingles again, without these."""
    high = np.empty(_BLOCK, dtype=np.uint32)
    least = np.empty(len(multipliers), dtype=np.uint32)
    for row in range(len(bands_of)):
        start, stop = offsets[3 * row], offsets[3 * row + 2]
        grams = values[start:stop][~common[start:stop]]
        if 0 < len(grams) < stop - start:
            _sketch_row(grams, len(grams), multipliers, summands, high, least, bands_of[row])


@compiled
def shares_bucket(keys, shared):
    """Marks the rows whose band hash another row has too. keys: sorted; upper 32 bits the hash, lower 32 bits the row."""
    for at in range(1, len(keys)):
        if keys[at] >> np.uint64(32) == keys[at - 1] >> np.uint64(32):
            shared[keys[at] & np.uint64(0xFFFFFFFF)] = True
            shared[keys[at - 1] & np.uint64(0xFFFFFFFF)] = True


@compiled
def _similarity(values, offsets, common, ours, theirs, table, threshold, stretch):
    """The similarity of two rows, 0 below the threshold. Near copies have answers that are alike on their own, and questions
    that share half as much of their own: rows with one stock answer are no copies. `table` has our shingles."""
    size = offsets[3 * ours + 2] - offsets[3 * ours]
    length = offsets[3 * theirs + 2] - offsets[3 * theirs]
    spare = length - np.int64(np.ceil(threshold * (size + length) / (1.0 + threshold) - 1e-6))  # more missing: out of reach
    missing = counted = asked = asked_counted = 0
    for at in range(offsets[3 * theirs], offsets[3 * theirs + 2]):
        if _holds(table, np.uint64(len(table) - 1), values[at]):
            counted += not common[at]
            if at < offsets[3 * theirs + 1]:
                asked += 1
                asked_counted += not common[at]
        else:
            missing += 1
            if missing > spare:
                return 0.0
    differ = size - length + 2 * missing
    asked_apart = offsets[3 * ours + 1] - offsets[3 * ours] + offsets[3 * theirs + 1] - offsets[3 * theirs] - 2 * asked
    known = asked > asked_counted  # text that is common
    if asked_counted <= threshold / 2 * (asked_counted + asked_apart) and (
        asked_apart > (0 if known else 2 * stretch) or _shared_words(values, offsets, ours, theirs, 0, threshold) < 0
    ):
        return 0.0
    if counted < threshold * (counted + differ) or _shared_words(values, offsets, ours, theirs, 1, threshold) < 0:
        return 0.0
    return counted / (counted + differ) if differ else 1.0


@compiled
def link_buckets(keys, set_of, offsets, values, common, threshold, stretch, best, before, parents, likeness, edges):
    """Compares rows that share a bucket of one band and joins those whose similarity reaches the threshold. keys: sorted; upper
    32 bits the band's hash, lower 32 bits the row. set_of: place of a row's lists. A row is compared with the `best` first rows
    of its bucket and the `before` rows before it, but not with rows of its own group. Joined pairs are written to `edges`;
    returns how many. `likeness` keeps each row's highest similarity."""
    table = hash_table(values[:0])
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
            size = offsets[3 * ours + 2] - offsets[3 * ours]
            ready = False
            head = min(first + best, mine)
            for step in range(head - first + mine - max(head, mine - before)):
                other = first + step if first + step < head else max(head, mine - before) + step - (head - first)
                mate = np.int64(keys[other] & low)
                theirs = set_of[mate]
                length = offsets[3 * theirs + 2] - offsets[3 * theirs]
                if min(size, length) < threshold * max(size, length) or root_of(parents, row) == root_of(parents, mate):
                    continue
                if not ready:
                    table = hash_table(values[offsets[3 * ours] : offsets[3 * ours + 2]])
                    ready = True
                similarity = _similarity(values, offsets, common, ours, theirs, table, threshold, stretch)
                if similarity > 0:
                    likeness[row] = max(likeness[row], similarity)
                    likeness[mate] = max(likeness[mate], similarity)
                    join(parents, row, mate)
                    edges[joined, 0] = mate
                    edges[joined, 1] = row
                    joined += 1
        first = last
    return joined


@compiled
def find_grams(content, edges, alphabet, sizes, whole, seen, shift, table, hits):
    """Finds the wanted n-grams in each text: rows (text, gram) in `hits`; returns their number, which may exceed the length of
    `hits`. sizes: the n-grams' sizes in words. whole: for each size, whether an n-gram counts only if it is the whole text.
    `seen` has a bit for every value of `gram >> shift` of a wanted n-gram; `table` holds the wanted n-grams."""
    most = most_words(edges)
    words = np.empty(most, dtype=np.uint64)
    sums = np.zeros(most + 1, dtype=np.uint64)
    powers = np.ones(len(sizes), dtype=np.uint64)
    for at in range(len(sizes)):
        for _ in range(sizes[at]):
            powers[at] *= _GRAM
    mask = np.uint64(len(table) - 1)
    hit_count = 0
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
                    if hit_count < len(hits):
                        hits[hit_count, 0] = np.uint64(text)
                        hits[hit_count, 1] = gram
                    hit_count += 1
    return hit_count
