r"""Values of texts, exactly: numbers, fractions, powers, percentages, pairs and sets, in English and in continental notation.

    final_number("5/7")                             # 5/7: what a right answer comes to; None where it is not one value
    final_number("2024-05-01")                      # None
    said_number(r"\boxed{9{,}500} (see step 2)", wanted)        # 9500: what a model's answer comes to
    same_number(said, wanted)

A value that is marked counts before others: in the last \boxed{} or <answer>, after the last ####, after "answer:" or "answer
is". A right answer without a mark is one value, alone or among words ("18 eggs"); dates, times, expressions with variables and
several numbers are none. An answer of a model without a mark says the last value of its text; where it ends in an expression
(10 - 4) it says none. Numbers of labels ("step 2", "2." at the start of a line) count only where there is no other.

Values are compared exactly: 0.333 is not 1/3. 50 % equals 50 and 0.5. A pair in brackets has an order, `x = 5 or x = -5` and
`\pm 5` have none. Of `1,234` and `1.234`, the first has thousands, unless the text is continental: it holds another number or a
word that is. `3,4` is 3.4, and the list 3, 4 where a list is compared with it. Of `14/3 ≈ 4.67`, either value
counts. Every search takes linear time."""

# ruff: noqa: RUF001 (the sign of multiplication)

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from model_ops.tasks.number_spelling import SCALES, plain_text

MOST_DIGITS = 400
"""Longer numbers are none: they would take memory and time."""
MOST_CHARACTERS = 2_000
"""A longer text is not one value; where it has no mark, its end says the last one."""


@dataclass(frozen=True)
class Value:
    """One number, or those of a pair or a set."""

    parts: tuple[Fraction, ...]
    percent: bool = False
    ordered: bool = False
    listed: tuple[Fraction, ...] = ()
    """The other reading of `3,4`: a list."""
    rounded: Value | None = None
    """What an exact value is said to be about: 4.67 of 14/3 ≈ 4.67."""

    def __str__(self) -> str:
        written = [_decimal(each) for each in self.parts]
        if len(written) == 1:
            return written[0] + "%" * self.percent
        return f"({', '.join(written)})" if self.ordered else " or ".join(written)


def _decimal(number: Fraction) -> str:
    twos, fives, rest = 0, 0, number.denominator
    while rest % 2 == 0:
        twos, rest = twos + 1, rest // 2
    while rest % 5 == 0:
        fives, rest = fives + 1, rest // 5
    if rest != 1:
        return str(number)
    places = max(twos, fives)
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return "-" * (number < 0) + digits[: len(digits) - places] + ("." + digits[-places:] if places else "")


def same_number(said: Value, wanted: Value) -> bool:
    """Whether two values are equal."""
    if said.rounded is not None and same_number(said.rounded, wanted):
        return True
    if not said.ordered and len(set(said.parts)) == 1:  # 1/2 or 0.5
        said = replace(said, parts=said.parts[:1])
    if len(said.parts) == len(wanted.parts) == 1:
        one, other = said.parts[0], wanted.parts[0]
        if said.percent == wanted.percent:
            return one == other or (bool(said.listed) and said.listed == wanted.listed)
        share, plain = (one, other) if said.percent else (other, one)
        return share == 100 * plain or (share == plain and (wanted.percent or not 0 < abs(plain) < 1))  # 0.5 is not 0.5 %
    both = [each.parts if len(each.parts) > 1 else each.listed for each in (said, wanted)]
    return both[0] == both[1] if said.ordered or wanted.ordered else sorted(both[0]) == sorted(both[1])


def final_number(text: str) -> Value | None:
    """The value that a right answer comes to; None where it is not one value."""
    if _COEFFICIENT.fullmatch((_last_box(text) or (0, text))[1].strip()):
        return None
    part = _marked(text)
    return _whole(text) if part is None else part.value


def logged_number(text: str) -> Value | None:
    """The value of a logged answer that is taken for right: as of a right answer, or of its last sentence with a number."""
    if (part := _marked(text)) is not None:
        return part.value
    sentences = [each for each in _SENTENCE_END.split(text[-MOST_CHARACTERS:]) if re.search(r"\d", each)]
    return _whole(text) or (_whole(sentences[-1]) if sentences else None)


def said_number(text: str, wanted: Value) -> Value | None:
    """The value that a model's answer comes to. wanted: the right one, which says whether a list is looked for."""
    if (part := _marked(text)) is not None:
        return part.value
    tail = text[-MOST_CHARACTERS:]
    tail = tail if tail == text else re.sub(r"\A\S+", "", tail)
    value, plain = _whole(text), plain_text(_SOURCES.split(tail)[0])
    if value is not None and (len(value.parts) == 1 or len(wanted.parts) > 1 or not re.search("[a-zA-Z]", plain)):
        return value
    if value is not None and same_number(value, wanted):
        return value
    groups = list(_groups(plain, _is_continental(text), lists=len(wanted.parts) > 1))
    rated = [each for each in groups if not each.label] or groups
    return rated[-1].value if rated else None


# Marks -------------------------------------------------------------------------------------------------------------------

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_ANSWER_TAG = re.compile(r"<answer>", re.IGNORECASE)
_ANSWER = re.compile(
    r"[\"'](?:result|solution)[\"']\s*:|(?:\b|(?<=_)|(?<=final))(?:(?:answer|result|solution|antwort|ergebnis|l(?:ö|oe)sung|r[ée]ponse|r[ée]sultat|respuesta|resultado|risposta|resposta|antwoord)"
    r"(?:\s+(?:is|equals|was|ist|lautet|betr(?:ä|ae)gt|est|es|è|é|vaut))\b|"
    r"(?:answer|antwort|r[ée]ponse|respuesta|risposta|resposta|antwoord|final result|ergebnis)[\s*_\"']*[:=]|"
    r"final\s+answer[\s*_]*(?:\n|[:=]))",
    re.IGNORECASE,
)  # fmt: skip
_SENTENCE_END = re.compile(
    r"\n|(?<=[^\d\s])(?<!\bi\.e)(?<!\be\.g)(?<!\bRs)(?<!approx)[.;!?](?=\s|$)|(?<=\d)(?!!\s?=)[.;!?](?=\s+[^\d\s]|\s*$)"
)


_CLAUSE_END = re.compile(r",\s|[;(]|\b(?:because|since|as|for|where|weil|da|car|porque)\b")


_SOURCES = re.compile(r"\n\s*(?:\[\^?\d{1,3}\]:?\s+\S|(?:Sources|References|Citations)\b)")
_NUMBERED = re.compile(
    r"\(?\d+[.)]\s+[^\W\d]|"
    r"(?!Rs|About|Around|Only|Total|Sum|Exactly|Roughly|Answer|Result|Antwort)"
    r"[A-Z][a-z]+ [#(]?\d+\)?\s*(?:$|[:.(–-]\s*[^\W\d])"
)
_COEFFICIENT = re.compile(r"(\$?)[-+]?\d[\d.,]*[adktIV]\1")
"""A number before a variable, which would be a unit or a scale elsewhere."""
_SUM_OF_NAMES = re.compile(r"^\s*(?:\|[^|={}\d]+\||\\text\{[^{}=\d]*\}|[a-zA-Z](?:\s*+[+*/-]?\s*+[a-zA-Z])+)\s*=")
_BESIDE = re.compile(
    r"(?<=\d)\s*\\(?:text|mbox|textrm|mathrm)\{[a-zA-Z ]+ (?:in|per|for|of|after|every|each) \d[^{}]*\}\s*$|"
    r"^[^=]*\\(?:sqrt|pi|log|ln|sin|cos|tan)(?![a-zA-Z])[^=]*\\approx"
)
"""What stands beside the value of a box: "clips in 2 months", and the root that it rounds."""


@dataclass(frozen=True)
class _Part:
    value: Value | None


def _marked(text: str) -> _Part | None:
    """The value at the strongest mark; None for a text without a mark, or whose marks hold no value."""
    box, mark = _last_box(text), text.rfind("####")
    if box is not None and box[0] > mark:
        continental, content = _is_continental(text), _SUM_OF_NAMES.sub("", box[1])
        return _Part(_whole(content, continental) or _whole(_BESIDE.sub("", content), continental))
    tags = list(_ANSWER_TAG.finditer(text))
    if tags and tags[-1].start() > mark:
        inner = text[tags[-1].end() : tags[-1].end() + MOST_CHARACTERS].partition("</")[0]
        return _marked(inner) or _Part(_at_start(inner, text))
    if mark >= 0:
        line, _, rest = text[mark + 4 : mark + MOST_CHARACTERS].strip("# ").partition("\n")
        begins_line = text[:mark].rpartition("\n")[2].strip() == ""
        if not (rest.strip() and (_LABEL.match(line) or (begins_line and _is_heading(line, rest)))):
            return _Part(_at_start(line, text))
    for each in reversed(list(_ANSWER.finditer(text))[-9:]):
        after = text[each.end() : each.end() + MOST_CHARACTERS // 4].lstrip(" \t\r\n*_:=")
        end = _SENTENCE_END.search(after)
        said = _at_start(after[: end.start()] if end else after, text)
        if said is not None:
            return _Part(said)
    return None


def _is_heading(line: str, rest: str) -> bool:
    """Whether a line behind #### is Markdown's heading of the text below it: no number, "1. April", "Part 3", "2 months"."""
    number = re.search(r"\d+", line)
    if number is None or _NUMBERED.match(line):
        return True
    sums = re.search(r"=\s*\W{0,9}\d", rest) is not None and not re.search(rf"(?<!\d){number.group()}(?!\d)", rest)
    return sums and re.match(r"\d+ [a-zA-Z]", line) is not None


def _last_box(text: str) -> tuple[int, str] | None:
    r"""(place, content) of the last \boxed{}; of several that only "and" joins, their contents together."""
    boxes: list[tuple[int, int, str]] = []
    for each in list(_BOX.finditer(text))[-9:]:
        start = each.end()
        if text[start : start + 1] == "{":
            depth = 0
            for place in range(start, min(len(text), start + MOST_CHARACTERS)):
                depth += (text[place] == "{") - (text[place] == "}")
                if not depth:
                    boxes.append((each.start(), place + 1, text[start + 1 : place]))
                    break
        elif number := re.compile(r"-?[\d.,]*\d").match(text, start):
            boxes.append((each.start(), number.end(), number.group()))
    if not boxes:
        return None
    content = boxes[-1][2]
    for (_, end, before), (start, _, _) in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=False):
        if not re.fullmatch(r"(?:[\s$,;]|\\text|[{}]|\band\b|\bor\b)+", text[end:start]) or "\n\n" in text[end:start]:
            break
        content = f"{before} and {content}"
    return boxes[-1][0], content


def _at_start(said: str, text: str) -> Value | None:
    """The value that a marked line begins with, after words such as "about"; else its last one."""
    if (value := _whole(said, continental := _is_continental(text))) is not None:
        return value
    plain = plain_text(said)
    groups = [each for each in _groups(plain, continental, lists=True) if not each.label]
    if not groups:
        return None
    if not groups[0].begins:
        return groups[-1].value
    clause = _CLAUSE_END.search(plain, groups[0].end)
    until = clause.start() if clause else len(plain)
    equal = [each for each in groups if each.end <= until and "=" in plain[: each.start]]
    return (equal[-1] if equal else groups[0]).value


_CONTINENTAL = re.compile(
    r"\d{1,3}(?:[.' ]\d{3})+,\d|(?<![\d.,])\d+,(?:\d{1,2}|\d{4,})(?![\d,])(?!\s*[)\]}])|(?<![\d.,])0,\d|"
    r"\d(?:\.\d{3}){2,}(?!\d)|"
    r"\b(?:ist|sind|und|beträgt|betragen|kostet|insgesamt|ergibt|antwort|lösung|ergebnis|est|sont|donc|réponse|les|une|respuesta|"
    r"los|una|entonces|risposta|sono|della|het|een|antwoord|resposta|são|uma)\b",
    re.IGNORECASE,
)
_ENGLISH = re.compile(r"\d{1,3}(?:,\d{3})+\.\d|\d(?:,\d{3}){2,}(?!\d)|(?<![\d.,])\d+\.(?:\d{1,2}|\d{4,})(?![\d.,])")


def _is_continental(text: str) -> bool:
    """Whether the text separates decimals by a comma: a number or a word of it says so, and no number says otherwise."""
    tail = text[-MOST_CHARACTERS:]
    return _CONTINENTAL.search(tail) is not None and _ENGLISH.search(tail) is None


# Numbers -----------------------------------------------------------------------------------------------------------------

_LITERAL = r"(?:\d{1,3}(?: \d{3})+(?![\d])(?:[.,]\d+)?|\d(?:[.,'_]?\d)*)"
_SCALE = {
    **SCALES, "hundred": 100, "millions": 10**6, "billions": 10**9, "thousands": 1000, "mn": 10**6, "mio": 10**6, "bn": 10**9,
    "mrd": 10**9, "k": 1000, "tausend": 1000, "millionen": 10**6, "milliarde": 10**9, "milliarden": 10**9, "mille": 1000,
    "milliard": 10**9, "milliards": 10**9, "millones": 10**6, "millón": 10**6, "milioni": 10**6, "milione": 10**6,
    "miljoen": 10**6, "miljard": 10**9, "mil": 1000, "dozen": 12, "lakh": 10**5, "crore": 10**7,
}  # fmt: skip
_VALUE = re.compile(
    rf"(?P<money>[€£¥]\s?)?(?P<number>(?<!\d)\.\d+|{_LITERAL})(?:[eE](?P<exponent>[-+]?\d{{1,9}})(?![\w.]))?"
    rf"(?:\s?\^\s?(?P<power>[-+]?\d+)|\s?/\s?(?P<under>{_LITERAL})| (?P<over>\d+)\s?/\s?(?P<below>\d+))?"
    r"(?:\s?[×x*]\s?10\s?\^\s?(?P<ten>[-+]?\d{1,9}))?"
    rf"(?:\s?(?P<percent>%|(?:percent|per cent|pct|prozent|pour cent|por ciento|por cento|procent)(?!\w))|"
    rf"[\s-]?(?P<scale>{'|'.join(sorted(_SCALE.keys() - {'k'}, key=len, reverse=True))}|(?<=\d)k)(?![\w-])\.?)?"
    r"(?P<paid>\s?(?:€|£|(?:EUR|Euros?)(?!\w))|,-(?!\d))?",
    re.IGNORECASE,
)
_UNITS = {
    *"mgslLhJWNVAKCFdtMkBaI", "cm", "mm", "km", "kg", "mg", "lb", "ft", "in", "oz", "yd", "mi", "hr", "mL", "ml", "dl", "st",
    "nd", "rd", "th", "am", "pm", "Hz", "kW", "GB", "MB", "TB", "kB", "Mb", "Gb", "ha", "er", "ms",
    "px", "pt", "pp", "kV", "mV", "mA", "Pa", "dB", "eV", "cc", "cl", "hp", "ct", "wk", "yr", "yo",
}  # fmt: skip
_FUNCTION = r"(?:pi|sqrt|sin|cos|tan|cot|csc|log|ln|exp|mod|gcd|lcm)"
_LABEL = re.compile(
    r"(?:step|example|figure|fig\.?|equation|eq\.?|section|table|chapter|case|method|option|lemma|theorem|note|schritt|beispiel|"
    r"abbildung|gleichung|étape|etape|exemple|paso|ejemplo|item|line)\s*[(#]?\s*\d",
    re.IGNORECASE,
)
_BEFORE_LABEL = re.compile(rf"{_LABEL.pattern[:-2]}$", re.IGNORECASE)
_OPERAND = re.compile(
    rf"\s*[+*×/^÷]\s*(?:[\d(\\\[{{√π-]|[a-zA-Z](?![a-zA-Z])|{_FUNCTION}\b)|\s*-\s*(?:[\d(\\√π]|[a-zA-Z](?![\w']))"
)
_OPENS = re.compile(
    rf"(?:[+*×/^√]|\\[a-zA-Z]+\s*\{{?|[a-zA-Z]\(|\b{_FUNCTION}\s?)$|[\d)]\s*(?:plus|minus|times|divided by|mod)$|"
    r"[\d)\]}%]\s*[×x+*/-]\s?$|\\sqrt\[$|[}\]]\{$|log_\{?\w+\}?$"
)
_CONTINUES = re.compile(
    rf":\d{{1,2}}(?!\d)|[/_\\]\d|!\S|\(\S|\s?(?:[√π]|\\[a-zA-Z])|\s?\)\s?\^|[.,'_-]\d|\s?{_FUNCTION}\b|[ ×]?[b-hj-zB-HJ-Z]\(|_"
)
_JOIN = re.compile(
    r"\s*(?:,|;|,?\s*\b(?:and|or|und|oder|et|ou|y|o|en)\b|&)\s*(?:[a-zA-Z](?:_?\{?\w\}?)?\s*=\s*)?", re.IGNORECASE
)
_ASSIGNED = re.compile(
    r"(^|[,;:({]|\b(?:or|and|is|that|so|have|hence|thus|get|oder|und|ou|et)\b)\s*"
    r"(?P<name>[a-zA-Z](?:_\{?\w{1,3}\}?|'|\([a-zA-Z\d]{1,3}\))?|\\angle [A-Z]{1,3}|[A-Z]{2,3})\s*(?:=|≈)\s*"
)


@dataclass(frozen=True)
class _Group:
    """A value of a text: one number, or several that are joined."""

    start: int
    end: int
    value: Value | None
    """None for a part of an expression, a time, a date."""
    label: bool
    begins: bool


def _groups(text: str, continental: bool, lists: bool) -> Iterator[_Group]:
    """The values of a plain text. lists: whether numbers that commas join are one value."""
    spots: list[_Group] = []
    for each in _spots(text, continental):
        if spots and (exact := _exact(spots[-1], each, text[spots[-1].end : each.start].strip())):
            spots[-1] = exact
        else:
            spots.append(each)
    place = 0
    while place < len(spots):
        group = [spots[place]]
        while place + len(group) < len(spots) and group[-1].value is not None:
            follower, between = spots[place + len(group)], text[group[-1].end : spots[place + len(group)].start]
            if follower.value is None or follower.label or len(between) > 30 or not _JOIN.fullmatch(between):
                break
            group.append(follower)
        place += len(group)
        first, last = group[0], group[-1]
        around = text[first.start - 1 : first.start] if first.start else "", text[last.end : last.end + 1]
        opened = around in (("(", ")"), ("[", "]"), ("{", "}"))
        ends = re.match(r"[\s)\]}.]*(?:$|\n)", text[last.end : last.end + 40]) is not None
        joined = [text[one.end : other.start] for one, other in pairwise(group)]
        together = lists or opened or (ends and any(each.strip(" ,;") for each in joined))
        if len(group) > 1 and not together:
            yield from group
            continue
        if len(group) == 1 and not (opened and first.value is not None and first.value.listed):
            yield first
            continue
        values = [each.value for each in group if each.value is not None]
        numbers = tuple(n for each in values for n in (each.listed or each.parts if opened else each.parts))
        yield _Group(first.start, last.end, Value(numbers, ordered=opened and around[0] != "{"), first.label, first.begins)


def _exact(before: _Group, group: _Group, sign: str) -> _Group | None:
    """The value that the next one only rounds, as in 14/3 ≈ 4.67 and 1/3 = 33.3%; None where it does not."""
    value, about = before.value, group.value
    if sign not in ("≈", "=") or value is None or about is None or len(value.parts) + len(about.parts) != 2:
        return None
    exact = value.parts[0] * (100 if about.percent and not value.percent else 1)
    if not 0 < abs(exact - about.parts[0]) * about.parts[0].denominator < 1:
        return None
    return replace(before, end=group.end, value=replace(value, rounded=about))


def _spots(text: str, continental: bool) -> Iterator[_Group]:
    began = re.search(r"^[ \t]*(\d{1,3})[.)]\s", text, re.MULTILINE) if len(text) > MOST_CHARACTERS // 2 else None
    listed = int(began[1]) - 1 if began else 0
    for each in _VALUE.finditer(text):
        start, end = each.span()
        before = text[max(0, start - 40) : start]
        if re.search(r"(?:[a-zA-Z_\\]|[a-zA-Z][-']|[\^_]\s?[-+{(]?|\d[.,])\Z", before):
            continue  # of a name or of a unit: m2, GPT-4, cm^2
        number = _number(each, continental)
        sign = re.search(r"(?:^|(?<=.))([-+±])\s?$", before, re.DOTALL)
        bare = before[: sign.start()] if sign else before
        bound = False
        if sign and _is_sign(bare, sign.group(), text, start - len(before) + len(bare)):
            start = start - len(before) + len(bare)
            before = bare
        elif sign:
            bound, sign = (
                not re.search(r"[a-zA-Z]\s$|^\s*$|\n\s*$", bare) or re.search(r"\b[a-zA-Z]\s$", bare) is not None,
                None,
            )
        elif minus := re.search(r"(?:^|[^\d\s)]\s*)\b(?:minus|negative|moins)\s$", before):
            sign = minus
        bound = bound or number is None or _is_bound(before, text, end)
        line = text[text.rfind("\n", 0, start) + 1 : start]
        counted = (
            each["number"].isdigit() and not line.strip(" -#>") and re.match(r"[.)]\s+\S", text[end : end + 9]) is not None
        )
        counted = counted and int(each["number"][:9]) == listed + 1
        listed += counted
        label = bool(counted or _BEFORE_LABEL.search(before))
        cited = re.search(r"(?:[\w.!?)\]]\s?|\n)\[$", before) is not None and text[end : end + 1] == "]"
        denied = re.search(r"(?:\bnot|n't)\s$", before) is not None
        label, bound = label or cited or denied, bound or denied
        opening = text.rfind("(", max(0, start - 300), start)
        if opening >= 0 and ")" not in text[opening:start]:  # a remark: 18 eggs (9 for each of 2)
            remark = re.search(r"\s$" if bound else r"[\d%](?: [a-zA-Z]+){0,2} $", text[max(0, opening - 40) : opening])
            label = label or remark is not None
        begins = re.fullmatch(r"(?:[^\w=]|approximately|about|around|roughly|[a-zA-Z] ?=)*", text[:start][-60:]) is not None
        if bound or number is None:
            yield _Group(start, end, None, label, begins)
            continue
        value = number
        if sign is not None:
            times = 1 if sign.group().strip() == "+" else -1
            numbers, items = ((times * each[0], *each[1:]) if each else () for each in (number.parts, number.listed))
            value = Value(number.parts + numbers if "±" in sign.group() else numbers, number.percent, listed=items)
        yield _Group(start, end, value, label, begins)


def _is_sign(bare: str, sign: str, text: str, place: int) -> bool:
    """Whether a minus or plus belongs to the number behind it: nothing is subtracted, and it is no bullet of a list."""
    if not bare.strip() or bare.rstrip(" ").endswith("\n"):
        return not sign.endswith((" ", "\n")) or "\n" not in text.strip()
    if re.search(r"[\w)\]}%°!]$", bare):
        return False  # 10-4
    if bare[-1].isspace() and re.search(r"[\w)\]}%°]$", bare.rstrip()):  # "is -5", "10 -4", "is - 5", "10 - 4"
        if re.search(r"[\d)\]}%]$|(?<![a-zA-Z])[b-zB-HJ-Z]$", bare.rstrip()):
            return False
        return not sign.endswith(" ") or re.search(r"\b(?:is|are|be|to|equals|get|ist|est)$", bare.rstrip()) is not None
    return True


def _is_bound(before: str, text: str, end: int) -> bool:
    """Whether a number is a part of an expression, a time or a date."""
    after = text[end : end + 40]
    if re.search(r"\d:$", before) and not text[end - 3 : end].isdigit():
        return True  # 2:30
    if _OPENS.search(before.rstrip(" ")) or _CONTINUES.match(after) or _OPERAND.match(after):
        return True
    unit = re.match(r"([ ]?)([a-zA-Zµ]+)(?![a-zA-Z(]|-[a-zA-Z]{2})", after)
    if unit is None or unit[2] in _UNITS:
        return False
    return len(unit[2]) == 1 or (not unit[1] and len(unit[2]) == 2)


def _number(each: re.Match[str], continental: bool) -> Value | None:
    literal = _literal(each["number"], continental, bool(each["money"] or each["paid"]))
    if literal is None:
        return None
    number, listed = literal
    if number is None:
        return Value(listed) if each.group() == each["number"] else None
    try:
        if each["exponent"]:
            number *= _power(Fraction(10), each["exponent"])
        if each["power"]:
            number = _power(number, each["power"])
        elif each["under"]:
            under = _literal(each["under"], continental, False)
            if under is None or under[0] is None:
                return None
            number /= under[0]
        elif each["over"]:
            if number.denominator != 1 or int(each["over"][:400]) >= int(each["below"][:400]):
                return None
            number += Fraction(int(each["over"]), int(each["below"]))
        if each["ten"]:
            number *= _power(Fraction(10), each["ten"])
    except (ZeroDivisionError, OverflowError, ValueError):
        return None
    number *= _SCALE[each["scale"].lower()] if each["scale"] else 1
    alone = each.group() == each["number"]
    return Value((number,), percent=bool(each["percent"]), listed=listed if alone else ())


def _power(base: Fraction, exponent: str) -> Fraction:
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if len(exponent) > 9 or abs(int(exponent)) * size > 4 * MOST_DIGITS:
        raise OverflowError
    return base ** int(exponent)


def _literal(text: str, continental: bool, money: bool) -> tuple[Fraction | None, tuple[Fraction, ...]] | None:
    """The number that digits with separators write, and the list that they may be; None for dates, versions, long numbers."""
    if sum(map(str.isdigit, text)) > MOST_DIGITS:
        return None
    for separator in " '_":
        if separator in text:
            if not re.fullmatch(rf"\d{{1,3}}(?:{separator}\d{{3}})+(?:[.,]\d+)?", text):
                return None
            return Fraction(text.replace(separator, "").replace(",", ".")), ()
    dots, commas = text.count("."), text.count(",")
    listed = tuple(map(Fraction, text.split(","))) if commas and not dots else ()
    if dots and commas:
        decimal = max(".,", key=text.rindex)
        whole, _, rest = text.rpartition(decimal)
        return (Fraction(f"{_ungrouped(whole)}.{rest}"), ()) if _ungrouped(whole) else None
    if dots + commas > 1:
        return (Fraction(_ungrouped(text)), listed) if _ungrouped(text) else (None, listed) if listed else None
    separator = "." if dots else ","
    thousands = re.fullmatch(r"[1-9]\d{0,2}[.,]\d{3}", text) is not None
    if thousands and (money or (separator == ".") == continental):
        return Fraction(text.replace(separator, "")), listed
    return Fraction(text.replace(",", ".")), listed


def _ungrouped(text: str) -> str:
    """Digits without separators of thousands, or of India's lakhs; "" where they are not separated so."""
    fits = re.fullmatch(r"\d{1,3}(?:,\d{3})+|\d{1,3}(?:\.\d{3})+|\d{1,2}(?:,\d\d)+,\d{3}|\d+", text)
    return re.sub(r"[.,]", "", text) if fits else ""


_MONTH = (
    r"(?:Jan(?:uary|uar)?|Feb(?:ruary|ruar)?|March|Mar|März|Apr(?:il)?|May|Mai|June?|Juni|July?|Juli|Aug(?:ust)?|"
    r"Sept?(?:ember)?|O[ck]t(?:ober)?|Nov(?:ember)?|De[cz](?:ember)?|janvier|février|mars|avril|juin|juillet|août|septembre|"
    r"octobre|novembre|décembre)"
)
_DATE = re.compile(rf"\b{_MONTH}\.?,? \d|\d(?:st|nd|rd|th)?\.? (?:of )?{_MONTH}(?!\w)")
_UNIT_POWER = re.compile(r"(?<=[a-zA-Z])(?:\^?[-+]?[1-9])(?!\d)")
_NO_WORDS = re.compile(
    rf"[\d+*×^=<>≤≥|\\√π∞±_]|\b{_FUNCTION}\b|(?<![a-zA-Z])/|/(?![a-zA-Z])|(?<![a-zA-Z'])[b-zB-HJ-Z](?![a-zA-Z'.)]|-[a-zA-Z]{{2}})",
    re.ASCII,
)


def _whole(text: str, continental: bool | None = None) -> Value | None:
    """The one value that a text is, with its unit or among words; None where it is not one."""
    if len(text) > MOST_CHARACTERS:
        return None
    continental = _is_continental(text) if continental is None else continental
    said = plain_text(text)
    plain = _ASSIGNED.sub(r"\1 ", said)
    groups = list(_groups(plain, continental, lists=True))
    left, sign, right = plain.rpartition("=")
    if sign and len(groups) != 1:
        return None if re.search(r"[a-zA-Z<>]", left) or not re.search(r"\d", left) else _whole(right, continental)
    if len(groups) != 1 or groups[0].value is None or groups[0].label or _DATE.search(plain):
        return None
    before, after = plain[: groups[0].start], plain[groups[0].end :]
    beside = _UNIT_POWER.sub("", f"{before} \n {after}")
    for unit in re.findall(r"(?<![a-zA-Z'])[a-zA-Z](?![a-zA-Z'])", beside):
        if unit in _UNITS:
            beside = re.sub(rf"(?<![a-zA-Z']){unit}(?![a-zA-Z'])", "UNIT", beside)
    if _NO_WORDS.search(beside) or after.startswith("!") or before[-1:] + after[:1] in ("[)", "(]"):
        return None
    return _by_name(groups[0].value, [each["name"][0] for each in _ASSIGNED.finditer(said)])


def _by_name(value: Value, names: list[str]) -> Value:
    """The values of different variables, which have an order: that of the names."""
    if not len(value.parts) == len(names) == len(set(names)) > 1:
        return value
    return Value(tuple(part for _, part in sorted(zip(names, value.parts, strict=True))), ordered=True)
