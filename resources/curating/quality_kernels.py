"""The loops of `resources.curating.quality`. Import this module inside functions only: it loads numba."""

import numpy as np

from model_ops.machine import compiled

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_GRAM = np.uint64(0xD1B54A32D192ED03)


@compiled
def longest_repeats(words, offsets, longest_pattern, least):
    """The most repetitions in a row of a pattern of 1 to `longest_pattern` words in each text, the pattern's words, and every
    run of `least` repetitions: text, place of a word in its middle, the pattern's words, repetitions."""
    repeats = np.ones(len(offsets) - 1, dtype=np.int32)
    sizes = np.zeros(len(offsets) - 1, dtype=np.int32)
    runs = np.empty((4 * len(words) // (least - 1) + 1, 4), dtype=np.int64)  # 1 + 1/2 + ... + 1/13 is below 4
    count = 0
    for text in range(len(repeats)):
        first, last = offsets[text], offsets[text + 1]
        for size in range(1, longest_pattern + 1):
            if last - first < size * min(repeats[text] + 1, least):
                break
            run = 0
            for word in range(first + size, last + 1):
                if word < last and words[word] == words[word - size]:
                    run += 1
                    continue
                if run // size + 1 > repeats[text]:
                    repeats[text] = run // size + 1
                    sizes[text] = size
                if run // size + 1 >= least:
                    runs[count] = text, word - 1 - run // 2 - first, size, run // size + 1
                    count += 1
                run = 0
    return repeats, sizes, runs[:count].copy()


@compiled
def loops(content, edges, longest_pattern):
    """Repetitions in a row of one byte pattern that takes more than half of the text; else 1. Such a run covers the middle of
    its text; the search starts there, so other texts cost almost nothing."""
    repeats = np.ones(len(edges) - 1, dtype=np.int32)
    for text in range(len(repeats)):
        start, stop = edges[text], edges[text + 1]
        middle = start + (stop - start) // 2
        for size in range(1, longest_pattern + 1):
            if stop - start < 2 * size:
                break
            last = middle
            while last < stop and last - size >= start and content[last] == content[last - size]:
                last += 1
            first = middle - 1
            while first >= start and first + size < stop and content[first] == content[first + size]:
                first -= 1
            run = last - first - 1
            if 2 * run >= stop - start and run // size > repeats[text]:
                repeats[text] = run // size
                break  # larger patterns are multiples of this one
    return repeats


@compiled
def _ends(content, at, stop):
    while at < stop and content[at] != 10:
        at += 1
    return at


@compiled
def is_code(content, start, stop):
    """Whether a line is a table row, has a tab, is indented, ends like a line of code, begins like one of a log (2026-06-01,
    12:00, [info]) or JSON, is mostly an array (brackets, and few letters), or half of its tokens have digits or , ; : / = _ or
    are options (CSV, hex dumps, YAML, rules of a firewall)."""
    first = content[start]
    if first == 124 or first == 91 or first == 123:
        return True
    if (
        48 <= first <= 57
        and stop - start > 8
        and (content[start + 2] == 58 or (content[start + 4] == 45 and content[start + 7] == 45))
    ):
        return True
    letters = others = tokens = technical = 0
    brackets = inside = counted = False
    for place in range(start, stop):
        byte = content[place]
        if byte == 9:
            return True
        letters += 97 <= (byte | 32) <= 122 or byte >= 128
        others += byte >= 128
        brackets |= byte == 91 or byte == 123 or byte == 40
        joins = byte == 44 or byte == 47 or byte == 58 or byte == 59 or byte == 61 or byte == 95
        option = byte == 45 and not inside and place + 1 < stop and content[place + 1] > 44
        if byte != 32 and not inside:
            tokens += 1
            counted = False
        if not counted and (48 <= byte <= 57 or (joins and inside) or option):
            technical += 1
            counted = True
        inside = byte != 32
    if (brackets and 3 * letters < stop - start) or (2 * technical >= tokens and 2 * others < stop - start):
        return True
    spaces = 0
    while start + spaces < stop and content[start + spaces] == 32:
        spaces += 1
    if spaces >= 4:
        return True
    last = content[stop - 1]
    return last == 59 or last == 123 or last == 125 or last == 41 or last == 93 or last == 62 or last == 44


@compiled
def _seen(table, stamp, marks, value):
    mask = len(table) - 1
    place = np.int64((value ^ (value >> np.uint64(29))) & np.uint64(mask))
    while marks[place] == stamp:
        if table[place] == value:
            return True
        place = (place + 1) & mask
    marks[place] = stamp
    table[place] = value
    return False


@compiled
def gopher(content, edges, least_words):
    """For each text: words of prose, share of code and, from `least_words` words of prose, the eleven shares that `quality`
    names. NaN where nothing was measured."""
    texts = len(edges) - 1
    shares = np.full((texts, 15), np.nan)
    longest = 0
    for text in range(texts):
        longest = max(longest, edges[text + 1] - edges[text])
    room = 1
    while room < longest + 2:
        room *= 2
    table = np.zeros(room, dtype=np.uint64)
    marks = np.zeros(room, dtype=np.int32)
    counts = np.zeros(room, dtype=np.int32)
    lasts = np.zeros(room, dtype=np.int32)
    hashes = np.zeros(longest // 2 + 2, dtype=np.uint64)  # every word but the last takes two bytes
    sizes = np.zeros(longest // 2 + 2, dtype=np.int32)
    stamp = 0
    for text in range(texts):
        start, stop = edges[text], edges[text + 1]
        words = lines = again_lines = again_line_characters = characters = code = 0
        paragraphs = again_paragraphs = again_paragraph_characters = 0
        fenced = False
        paragraph = _OFFSET
        paragraph_characters = 0
        stamp += 2
        at = start
        while at <= stop:
            end = _ends(content, at, stop) if at < stop else stop
            first, last = at, end
            while first < last and (content[last - 1] == 32 or content[last - 1] == 13):
                last -= 1
            empty = first == last
            fence = last - first >= 3 and content[first] == 96 and content[first + 1] == 96 and content[first + 2] == 96
            if fence:
                fenced = not fenced
            line_is_code = not empty and (fenced or fence or is_code(content, first, last))
            if line_is_code:
                code += last - first
            if not empty and not line_is_code:
                line = _OFFSET
                inside = False
                value = _OFFSET
                begin = first
                for place in range(first, last + 1):
                    byte = content[place] if place < last else 32
                    is_word = 48 <= byte <= 57 or 97 <= (byte | 32) <= 122 or byte >= 128 or byte == 39
                    if is_word:
                        if not inside:
                            value, begin = _OFFSET, place
                        low = byte | 32 if 65 <= byte <= 90 else byte
                        value = (value ^ np.uint64(low)) * _PRIME
                        line = (line ^ np.uint64(low)) * _PRIME
                    elif inside:
                        hashes[words] = value
                        sizes[words] = place - begin
                        words += 1
                        line = (line ^ np.uint64(32)) * _PRIME
                    inside = is_word
                lines += 1
                characters += last - first
                if _seen(table, stamp, marks, line):
                    again_lines += 1
                    again_line_characters += last - first
                paragraph = (paragraph ^ line) * _PRIME
                paragraph_characters += last - first
            if (empty or at >= stop or end >= stop) and paragraph_characters > 0:
                paragraphs += 1
                if _seen(table, stamp, marks, paragraph ^ _GRAM):
                    again_paragraphs += 1
                    again_paragraph_characters += paragraph_characters
                paragraph = _OFFSET
                paragraph_characters = 0
            at = end + 1
        shares[text, 0] = words
        shares[text, 1] = code / max(1, stop - start)
        if words < least_words:
            continue
        shares[text, 2] = again_lines / lines
        shares[text, 3] = again_paragraphs / max(1, paragraphs)
        shares[text, 4] = again_line_characters / characters
        shares[text, 5] = again_paragraph_characters / characters
        total = 0
        for word in range(words):
            total += sizes[word]
        for size in range(2, 5):
            stamp += 1
            shares[text, 4 + size] = _top(hashes, sizes, words, size, table, marks, counts, lasts, stamp) / total
        for size in range(5, 11):
            stamp += 1
            shares[text, 4 + size] = _again(hashes, sizes, words, size, table, marks, stamp) / total
    return shares


@compiled
def _gram(hashes, word, size):
    value = np.uint64(0)
    for step in range(size):
        value = (value ^ hashes[word + step]) * _GRAM
        value ^= value >> np.uint64(32)
    return value


@compiled
def _top(hashes, sizes, words, size, table, marks, counts, lasts, stamp):
    """Characters in the most frequent n-gram, if it occurs twice or more; of occurrences that overlap, the first counts."""
    mask = len(table) - 1
    most = 0
    for word in range(words - size + 1):
        value = _gram(hashes, word, size)
        place = np.int64((value ^ (value >> np.uint64(29))) & np.uint64(mask))
        while marks[place] == stamp and table[place] != value:
            place = (place + 1) & mask
        if marks[place] != stamp:
            marks[place] = stamp
            table[place] = value
            counts[place] = 0
        elif word < lasts[place] + size:
            continue
        counts[place] += 1
        lasts[place] = word
        if counts[place] > 1:
            characters = 0
            for step in range(size):
                characters += sizes[word + step]
            most = max(most, characters * counts[place])
    return most


@compiled
def _again(hashes, sizes, words, size, table, marks, stamp):
    """Characters in n-grams that occurred before, each counted once."""
    characters = 0
    word = 0
    while word <= words - size:
        if _seen(table, stamp, marks, _gram(hashes, word, size)):
            for step in range(size):
                characters += sizes[word + step]
            word += size
        else:
            word += 1
    return characters
