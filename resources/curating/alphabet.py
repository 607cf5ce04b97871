"""Classifies characters for word splitting, one number for each code point: ASCII letters, digits and underscores and, beyond
ASCII, letters, numbers and marks make words; case does not count. In scripts without spaces every character is a word (ALONE).
A text with an UNSETTLED character, which NFC lacks or has in some positions only, is normalised first."""

import unicodedata
from functools import cache
from itertools import chain

import numpy as np
from jaxtyping import UInt32

ALONE = 1 << 31
UNSETTLED = 1 << 30
CODE_POINTS = 0xE01F0
"""Higher code points are neither letters nor marks."""

_IN_USE = (range(0x33480), range(0xE0100, CODE_POINTS))
"""Ranges with letters, numbers and marks in Unicode 17; the second range holds the variation selectors, which are marks."""

_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
    (0x20000, 0x3347F),  # Han
    (0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F),  # Hiragana, Katakana
)  # fmt: skip
_HANGUL_VOWELS_AND_TAILS = ((0x1161, 0x1175), (0x11A8, 0x11C2))


@cache
def alphabet() -> UInt32[np.ndarray, " code_points"]:
    """For each code point: 0 (separates words), or its lower-case form with the flags ALONE and UNSETTLED."""
    table = np.zeros(CODE_POINTS, dtype=np.uint32)
    composed = {chr(code) for first, last in _HANGUL_VOWELS_AND_TAILS for code in range(first, last + 1)}
    for code in chain(*_IN_USE):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            composed.add(chr(int(parts[1], 16)))
    for code in chain(*_IN_USE):
        character = chr(code)
        if unicodedata.category(character)[0] in "LNM" or character == "_":
            table[code] = ord(character.lower()[0])
            if (
                unicodedata.combining(character)
                or character in composed
                or unicodedata.normalize("NFC", character) != character
            ):
                table[code] |= UNSETTLED
    for first, last in _WITHOUT_SPACES:
        chosen = table[first : last + 1]
        chosen[chosen > 0] |= ALONE
    table.flags.writeable = False
    return table
