r"""Plain text of numbers in LaTeX, Markdown, typography and English words, for number_value.py to read.

plain_text(r"$\frac{1}{2}\,\text{cm}^2$")     # "1/2 cm^2"
plain_text("twenty-one eggs")                # "21 eggs"
"""

# ruff: noqa: RUF001 (the sign of multiplication)

import re
import unicodedata

_SIGNS: dict[int, str | None] = {ord(each): "-" for each in "\u2212\u2013\u2010\u2011\ufe63\uff0d"}
_SIGNS |= {ord(each): "'" for each in "\u2019\u02bc\u00b4"} | {ord(each): "/" for each in "\u2044\u2215\u00f7"}
_SIGNS |= {ord(each): "×" for each in "\u22c5\u00b7\u2219\u2217"} | {ord(each): None for each in "\u200b\u2060\ufeff\u00ad"}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_NUMERIC = r"[-+]?\d[\d.,' ]*"
_LATEX: list[tuple[str, str]] = [
    (r"<<[^<>\n]{0,200}>>", ""),  # GSM8K's calculator
    (r"(?:<sup>|\\textsuperscript\{)\s*([-+]?\d+)\s*(?:</sup>|\})", r"^\1"),
    (r"(?m)^\*[ ](?=\S)", "• "),
    (r"</?[a-zA-Z][^<>\n]{0,60}>", " "),
    (r"&nbsp;|&thinsp;", " "),
    (r"\\!|\\(?:left|right|displaystyle|bigl?|Bigl?|bigr|Bigr|limits)(?![a-zA-Z])|\\[()\[\]](?![\d(])|\\[(\[\])]", ""),
    (r"\\(?:begin|end)\{(?:align(?:ed)?|gather(?:ed)?|split|equation|eqnarray|multline)\*?\}", " "),
    (r"&\s*(?=[=≈])|(?<=\d)/-(?![\d(])|\bRs\.?\s?(?=\d)", ""),
    (r"\\Omega(?![a-zA-Z])", "Ω"),
    (r"\\mu\s*(?=\\(?:text|mathrm|rm)(?![a-zA-Z]))", "μ"),
    (r"\{,\}", ","),
    (r"\\(?:[,;: ~]|(?:quad|qquad|thinspace)(?![a-zA-Z]))|~", " "),
    (r"\\\\", "\n"),
    (r"\\([$%#&{}])", r"\1"),
    (r"\^\s*\{?\s*\\circ\s*\}?|°", "°"),
    (r"\\(?:times|cdot|ast)(?![a-zA-Z])", "×"),
    (r"\\div(?![a-zA-Z])", "/"),
    (r"\\pm(?![a-zA-Z])", "±"),
    (r"\\approx(?![a-zA-Z])|\\simeq(?![a-zA-Z])", "≈"),
    (r"\\(?:lor|vee)(?![a-zA-Z])", " or "),
    (r"\\(?:text|textbf|textit|textrm|texttt|mathrm|mathbf|mathit|mathsf|mbox|emph|underline|bm|boldsymbol|operatorname|boxed|fbox)"
     r"\s*\{([^{}]*)\}", r" \1 "),
    (r"\\[dtc]?frac\s*(?:\{\s*(" + _NUMERIC + r")\s*\}|(\d))\s*(?:\{\s*(" + _NUMERIC + r")\s*\}|(\d))", r" \1\2/\3\4"),
    (r"\^\s*[{(]\s*([-+]?\d+)\s*[)}]", r"^\1"),
    (r"(?<=[\d)])\s?\*\*\s?(?=[-+(\d])", "^"),
    (r"\*\*|__|`|\\(?:bf|rm|it)(?![a-zA-Z])", ""),
    (r"(?<![\w)*])\*([^*\n]{1,80})\*(?![\w(*])", r"\1"),
    (r"(?:\b(?:US|R|A|C|HK|NZ|S)|(?<=[a-zA-Z]))\$", " "),
    (r"(?<=\d)M\b", " million"),
    (r"([$€£]\s?\d[\d.,]*)\s?[bB]\b", r"\1 billion"),
    (r"(?<=\d) and (?:a|one) half\b", " 1/2"),
    (r"\$", ""),
    (r"(?<=[a-zA-Z])\s+\^", "^"),
    (r"(?<=[a-zA-Z])\s?×\s?(?=[a-zA-Z])", " "),
    (r"(?<=[-+]) (?=\d+/\d)", ""),
    (r"(?<=\d) (?=')|[ \t\r\f\v]+", " "),
]  # fmt: skip
_SPELLINGS = [(re.compile(pattern), text) for pattern, text in _LATEX]


_TIGHT_ITEM = r"-?\d++(?:\.\d++)?+(?:/\d++(?:\.\d++)?+)?+"
_TIGHT_LIST = re.compile(rf"(?<![\w.,/^)\]}}]){_TIGHT_ITEM}(?:,{_TIGHT_ITEM})++(?![\w/])")
_GROUPED = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+|\d+(?:\.\d+)?)"
_ONE_NUMBER = re.compile(rf"-?{_GROUPED}(?:/{_GROUPED})?")


def plain_text(text: str) -> str:
    """The text without LaTeX, Markdown and typography, with number words as digits where it has no digits."""
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda each: "^" + each.group().translate(_RAISED), text.translate(_SIGNS))
    text = re.sub(r"(\d?)([¼-¾⅐-⅞])", lambda each: each[1] + " " * bool(each[1]) + unicodedata.normalize("NFKC", each[2]), text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    for _ in range(2 if "\\" in text else 1):
        for pattern, replacement in _SPELLINGS:
            text = pattern.sub(replacement, text)
    text = _TIGHT_LIST.sub(_separated, text)
    return text.strip() if re.search(r"\d", text) else _WORDS.sub(_in_digits, text.strip())


def _separated(each: re.Match[str]) -> str:
    """`(1,-2,3)` and `1/2,3` with blanks, which make them lists; numbers such as `-2,1` as they are outside of brackets."""
    said, text = each.group(), each.string
    brackets = text[: each.start()][-1:] in tuple("([{") and text[each.end() : each.end() + 1] in tuple(")]}")
    signed = ",-" in said or (brackets and "-" in said)
    one = _ONE_NUMBER.fullmatch(said) is not None and (not brackets or said.endswith(",000") or "/" not in said)
    return said.replace(",", ", ") if (signed and not said.endswith(",000")) or (re.search("[/.]", said) and not one) else said


_ONES = {word: n for n, word in enumerate((
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
))}  # fmt: skip
_TENS = {
    word: 10 * n for n, word in enumerate(("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), 2)
}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_BELOW = {"half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourths": 4, "fifth": 5, "fifths": 5}
_BELOW |= {"sixths": 6, "sevenths": 7, "eighth": 8, "eighths": 8, "ninths": 9, "tenth": 10, "tenths": 10}
_WORD = rf"(?:{'|'.join([*_ONES, *_TENS, 'hundred', *SCALES])})"
_WORDS = re.compile(
    rf"\b(?:(?P<a>an?)\s+)?(?P<said>{_WORD}(?:(?:\s+and\s+|[\s-]+){_WORD})*)?(?:\s+and\s+a)?"
    rf"(?:(?:^|[\s-])(?P<below>{'|'.join(_BELOW)}))?\b",
    re.IGNORECASE,
)


def _in_digits(each: re.Match[str]) -> str:
    """Number words as digits; the words themselves where they are no number, or "one" among other words."""
    words = re.findall(r"[a-z]+", (each["said"] or "").lower())
    below = _BELOW.get((each["below"] or "").lower())
    if (not words and not (below and (each["a"] or below == 2))) or (words == ["one"] and not below and len(each.string) > 30):
        return each.group()
    total = current = 0
    last = 1_000
    for word in (word for word in words if word != "and"):
        if word in SCALES:
            total, current, last = total + max(current, 1) * SCALES[word], 0, 1_000
        elif word == "hundred":
            current, last = max(current, 1) * 100, 100
        else:
            number = _ONES.get(word, _TENS.get(word, 0))
            if number >= last:
                return each.group()  # two, three: several numbers
            current, last = current + number, 10 if number >= 20 else 0
    total += current
    if not below:
        return str(total)
    return f"{total} 1/{below}" if re.search(r"\sand\s+a\s", each.group().lower()) else f"{total or 1}/{below}"
