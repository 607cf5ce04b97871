"""The loops of `resources.curating.personal_data.pii_scan`. Import this module inside functions only: it loads numba."""

import numpy as np

from model_ops.machine import compiled

_TOKEN, _SECRET_WORD, _NUMBER_WORD = 1, 2, 3


@compiled
def suspects(content, edges, words, word_edges, word_kinds, word_starts, word_signs, iban_lengths):
    """Marks the texts that may hold personal data; `edges` are the texts' offsets in `content`."""
    marked = np.zeros(len(edges) - 1, dtype=np.bool_)
    longest = 0
    for text in range(len(marked)):
        longest = max(longest, edges[text + 1] - edges[text])
    plain = np.zeros(longest + 64, dtype=np.uint8)  # zeros after the text: reading ahead needs no bounds check
    for text in range(len(marked)):
        size = _unescape(content, edges[text], edges[text + 1], plain)
        plain[size : size + 64] = 0
        marked[text] = _suspect(plain, size, words, word_edges, word_kinds, word_starts, word_signs, iban_lengths)
    return marked


@compiled
def _hex(byte):
    if 48 <= byte <= 57:
        return byte - 48
    lower = byte | 32
    return lower - 87 if 97 <= lower <= 102 else -1


@compiled
def _unescape(content, start, stop, plain):
    size = 0
    at = start
    while at < stop:
        byte = content[at]
        at += 1
        if byte != 92:
            plain[size] = byte
            size += 1
            continue
        while at < stop and content[at] == 92:
            at += 1
        if at >= stop:
            break
        byte = content[at]
        at += 1
        if byte == 117 and at + 4 <= stop:
            code = 0
            for step in range(4):
                digit = _hex(content[at + step])
                code = -1 if digit < 0 or code < 0 else code * 16 + digit
            if code >= 0:
                # beyond ASCII only the bytes of listed words matter; the words in other scripts are spelt out below
                size = _put(plain, size, code)
                at += 4
                continue
        if _alnum(byte):  # after a backslash that is one of the text: what precedes it is no part of this word or number
            plain[size] = 10
            size += 1
        plain[size] = 10 if byte in (110, 114, 116, 98, 102) else byte
        size += 1
    return size


@compiled
def _put(plain, size, code):
    """Writes a character of the Basic Multilingual Plane as UTF-8; returns the new size."""
    if code < 0x80:
        plain[size] = code
        return size + 1
    if code < 0x800:
        plain[size] = 0xC0 | (code >> 6)
        plain[size + 1] = 0x80 | (code & 0x3F)
        return size + 2
    plain[size] = 0xE0 | (code >> 12)
    plain[size + 1] = 0x80 | ((code >> 6) & 0x3F)
    plain[size + 2] = 0x80 | (code & 0x3F)
    return size + 3


@compiled
def _digit(byte):
    return 48 <= byte <= 57


@compiled
def _letter(byte):
    return 97 <= (byte | 32) <= 122


@compiled
def _alnum(byte):
    return 48 <= byte <= 57 or 97 <= (byte | 32) <= 122


@compiled
def _suspect(plain, size, words, word_edges, word_kinds, word_starts, word_signs, iban_lengths):
    at = 0
    address = 0
    while at < size:
        byte = plain[at]
        if _digit(byte):
            is_suspect, at = _number(plain, at, size, iban_lengths)
            if is_suspect:
                return True
            continue
        if byte == 64:  # @
            before, after = plain[at - 1] if at else 32, plain[at + 1]
            if before > 32 and before != 34 and before != 39 and (_alnum(after) or after >= 0x80 or after == 91):
                return True
        elif byte == 58:  # :
            if at >= address and plain[at + 1] == 47 and plain[at + 2] == 47:
                is_suspect, address = _query(plain, at + 3, size)  # an address may hold others: it is read once
                if is_suspect:
                    return True
            if _ipv6(plain, at, size):
                return True
        if word_signs[np.int64(byte) << 8 | np.int64(plain[at + 1])]:
            kind = _word(plain, at, words, word_edges, word_kinds, word_starts)
            if kind == _TOKEN:
                return True
            # "social security" (115: s) and words of other scripts may stand inside another word
            anywhere = byte >= 0x80 or byte | 32 == 115
            if kind == _NUMBER_WORD and not anywhere and at and (_alnum(plain[at - 1]) or plain[at - 1] == 95):
                kind = 0
            if kind != 0 and _value_follows(plain, at, size, kind):
                return True
        at += 1
    return False


@compiled
def _word(plain, at, words, word_edges, word_kinds, word_starts):
    for fold in range(2):
        first, second = plain[at], plain[at + 1]
        if fold:
            first = first | 32 if _letter(first) else first
            second = second | 32 if _letter(second) else second
        number = word_starts[np.int64(first) << 8 | np.int64(second)]
        if number < 0:
            continue
        while number < len(word_kinds) and words[word_edges[number]] == first and words[word_edges[number] + 1] == second:
            exact = word_kinds[number] == _TOKEN
            length = word_edges[number + 1] - word_edges[number]
            same = exact == (fold == 0)
            step = 2
            while same and step < length:
                byte = plain[at + step]
                if not exact and 65 <= byte <= 90:
                    byte |= 32
                same = byte == words[word_edges[number] + step]
                step += 1
            if same and not (exact and length == 2 and not _digits_nearby(plain, at)):
                return word_kinds[number]
            number += 1
    return 0


@compiled
def _digits_nearby(plain, at):
    """Whether _ or - follows within a few bytes, as in ghp_ and glpat-: gh and gl alone begin no token."""
    nearby = False
    for step in range(2, 6):
        nearby |= plain[at + step] == 95 or plain[at + step] == 45
    return nearby


@compiled
def _value_follows(plain, at, size, kind):
    """Whether something like a secret (for a secret's word) or seven digits (for a telephone's) follow a word closely."""
    if kind == _NUMBER_WORD:
        return _number_follows(plain, at, size)
    run = 0
    run_digits = 0
    for place in range(at + 2, min(at + 88, size)):
        byte = plain[place]
        if _digit(byte):
            run_digits += 1
        if byte <= 32 or byte == 34 or byte == 39 or byte == 96 or byte == 44 or byte == 59:
            run = 0
            run_digits = 0
        else:
            run += 1
            if run >= 6 and run_digits > 0:
                return True
    return False


@compiled
def _number_follows(plain, at, size):
    """Whether the first digit within 60 characters of a word begins seven digits that are at most 8 bytes apart."""
    place = at + 2
    characters = 2
    while place < size and characters < 60 and not _digit(plain[place]):
        characters += (plain[place] & 0xC0) != 0x80
        place += 1
    if not _digit(plain[place]):
        return False
    digits = 0
    gap = 0
    while place < size and gap <= 8 and digits < 7:
        if _digit(plain[place]):
            digits += 1
            gap = 0
        else:
            gap += 1
        place += 1
    return digits >= 7


@compiled
def _query(plain, at, size):
    asked = False
    while at < size:
        byte = plain[at]
        if byte <= 32 or byte == 34 or byte == 39 or byte == 60 or byte == 62 or byte == 96:
            return False, at
        if byte == 63 or byte == 38 or byte == 59:
            asked = True
        if byte == 61 and asked:
            return True, at
        if byte == 64:
            return True, at
        at += 1
    return False, at


@compiled
def _ipv6(plain, at, size):
    start = at
    while start > 0 and _hex(plain[start - 1]) >= 0 and at - start < 5:
        start -= 1
    if start > 0 and plain[start - 1] == 58:
        return False
    colons = 0
    double = False
    place = start
    while place < size and (_hex(plain[place]) >= 0 or plain[place] == 58):
        if plain[place] == 58:
            colons += 1
            double = double or plain[place + 1] == 58
        place += 1
    return colons >= 6 or (double and (at - start >= 2 or plain[place] == 46))


@compiled
def _number(plain, at, size, iban_lengths):
    """Whether the digit groups at `at` may be an account, card or telephone number, and where they end."""
    start = at
    before = plain[at - 1] if at else 32
    account = at >= 2 and _letter(before) and _letter(plain[at - 2]) and _digit(plain[at + 1])
    if account and (at < 3 or not _alnum(plain[at - 3])) and _iban(plain, at - 2, size, iban_lengths):
        return True, at
    one = two = three = 0  # lengths of the last groups; `three` is the last one
    dotted = 0  # groups of at most three digits joined by single dots
    trunk = 0  # digits since the last group with a trunk prefix or 00
    mobile = False
    total = 0
    plus = at and (before == 43 or (at >= 2 and (before == 32 or before == 40) and plain[at - 2] == 43))
    while True:
        first = plain[at]
        second = plain[at + 1]
        group = at
        while at < size and _digit(plain[at]):
            at += 1
        length = at - group
        total += length
        one, two, three = two, three, length
        opens = first == 48 and (49 <= second <= 57 or (second == 48 and (length == 2 or plain[group + 2] != 48)))
        # no card and no trunk prefix begins right after the point of a fraction
        after_point = group >= 2 and plain[group - 1] == 46 and _digit(plain[group - 2])
        trunk = trunk + length if trunk > 0 or (opens and not after_point) else 0
        dotted = dotted + 1 if length <= 3 else 0
        if length >= 13 and not after_point and _luhn(plain, group, at):
            return True, at
        if one == 3 and two == 2 and three == 4:
            return True, at
        if one == 3 and two == 3 and three == 4:
            return True, at
        if one == 4 and (two == 4 or two == 6) and (three == 4 or three == 5):
            return True, at
        if (two == 4 or two == 5) and one == 3 and three == 4:
            mobile = True
        if one == 2 and (two == 4 or two == 5) and three == 4:
            mobile = True
        if mobile or trunk >= 9 or (plus and total >= 8) or dotted >= 4:
            return True, at
        gap = at
        while (
            gap < size
            and gap - at < 4
            and (
                plain[gap] == 32
                or plain[gap] == 45
                or plain[gap] == 46
                or plain[gap] == 40
                or plain[gap] == 41
                or plain[gap] == 47
                or plain[gap] == 0xC2
                or plain[gap] == 0xA0
            )
        ):
            gap += 1
        if gap == at or gap >= size or not _digit(plain[gap]):
            return False, max(at, start + 1)
        if gap - at != 1 or plain[at] != 46:
            dotted = 0
        at = gap


@compiled
def _luhn(plain, start, stop):
    if stop - start > 19 or plain[start] < 50 or plain[start] > 54:
        return False
    total = 0
    for place in range(start, stop):
        value = np.int64(plain[place]) - 48
        if (stop - 1 - place) % 2 == 1:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return total % 10 == 0


@compiled
def _iban(plain, at, size, iban_lengths):
    length = iban_lengths[((plain[at] | 32) - 97) * 26 + (plain[at + 1] | 32) - 97]
    signs = 0
    place = at
    while place < size and signs < length:
        if _alnum(plain[place]):
            signs += 1
        elif not (plain[place] == 32 or plain[place] == 45 or plain[place] == 0xC2 or plain[place] == 0xA0):
            break
        place += 1
    return length > 0 and signs == length and not _alnum(plain[place])
