"""Finds personal data in a text: spans, each with its kind and a normalised value. Of overlapping spans, the kind that comes
first in PERSONAL_DATA_KINDS is kept. Patterns propose; checksums, ranges, lengths and the words around decide. Sources: Luhn
and issuer ranges ISO/IEC 7812-1 and the networks' published ranges, IBAN ISO 13616 with the SWIFT registry's lengths, SSN areas
as the Social Security Administration assigns them, country codes ITU-T E.164."""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from resources.curating.personal_data.secret_patterns import TOKEN_PREFIXES, Span, assigned_secrets, tokens, url_credentials

PERSONAL_DATA_KINDS = ("SECRET", "EMAIL", "IBAN", "CARD", "SSN", "IP", "PHONE")


REMEMBERED = 1 << 15
"""Number of texts whose spans are cached, by digest: chats repeat their history and their instructions."""
_known: dict[bytes, tuple[Span, ...]] = {}


def find_personal_data(text: str) -> tuple[Span, ...]:
    key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    spans = _known.get(key)
    if spans is None:
        spans = without_overlaps(_proposals(text))
        if len(_known) >= REMEMBERED:
            _known.clear()
        if len(spans) < 100:
            _known[key] = spans
    return spans


def without_overlaps(spans: Iterator[Span] | list[Span]) -> tuple[Span, ...]:
    """Removes overlaps: keeps the span whose kind comes first in KINDS, then the earlier, then the longer."""
    rank = {kind: place for place, kind in enumerate(PERSONAL_DATA_KINDS)}
    taken: list[Span] = []  # in order
    for span in sorted(spans, key=lambda span: (rank.get(span.kind, len(rank)), span.start, -span.end)):
        place = bisect_left(taken, span.end, key=attrgetter("start"))
        if place == 0 or taken[place - 1].end <= span.start:
            taken.insert(place, span)
    return tuple(taken)


_NUMBER = re.compile(r"[0-9](?:[ \u00a0().\-/]{0,3}[0-9]){6,}")


def _proposals(text: str) -> Iterator[Span]:
    if "://" in text:
        yield from url_credentials(text)
    if any(prefix in text for prefix in TOKEN_PREFIXES):
        yield from tokens(text)
    if ":" in text or "=" in text or " is " in text or "earer" in text:
        yield from assigned_secrets(text)
    if "@" in text:
        yield from _emails(text)
    longest = max((sum(map(str.isdigit, run.group())) for run in _NUMBER.finditer(text)), default=0)
    if longest >= 12:
        yield from _cards(text)
    if longest >= 7:
        yield from _ssns(text)
        yield from _phones(text)
    yield from _ibans(text)
    if text.count(".") >= 3:
        yield from _ipv4(text)
    if _IPV6_SIGN.search(text):
        yield from _ipv6(text)


# --- e-mail ---------------------------------------------------------------------------------------------------------

_LOCAL = re.compile(r"[\w.%+\-']{1,64}\Z")
_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}(xn--[a-z0-9\-]{2,40}|[^\W\d_]{2,24}?)"
    r"(?:(?=E<gt>)|(?![^\W_]|@)(?!\.\w))"  # E<gt>: Perl's documentation
)
_ENDINGS = frozenset(" ".join(json.loads((Path(__file__).parent / "top_level_domains.json").read_text())).split())
"""Top-level domains of IANA (version 2026051600), without those that code has as names of files, units and methods and hardly
anybody in an address; and those of networks without names of their own."""
_WORDS = """
    name to co py info abc cat data read training id group seek show int search save stream events md auto io post at parts
    bar now day ne lt gt ge test mt mm mh mr ai nr nc tz dev pt jobs local build storage fail discover directory best center
    safe live na so no mv help next today host store red sh ps zero pid security cc author site net me degree how properties
    video report do space blue direct in free rest download plus world place compare codes my shell energy box style win
    star is drive cool network tools top work link page app re as it st tr rs pl ml
"""
_NAMES_IN_CODE = frozenset(_WORDS.split())
"""Endings that methods, attributes and files have as well."""
_FILE_ENDINGS = frozenset(("py", "sh", "so", "ps"))
_LABELS = frozenset(("this", "self", "cls", "super", "return", "break", "continue"))
_REMOTE = re.compile(r":(?:[/~]|[\w.\-]+(?:/|\.git\b))|:~| ~\]")
_REPOSITORY = re.compile(r"(?:[\-_][\w\-]*)?[:/]")  # git@github.com:org, and git@github.com-work:org, an alias of SSH
_LOGIN = re.compile(
    r"(?:\b(?:ssh|scp|sftp|mosh|rsync|ssh-copy-id)\s+(?:-\w\S*\s+(?:[\w/.~:]+\s+)?){0,6}|://[^\s/@\"'<>]{0,64})\Z"
)
_TEMPLATE = re.compile(r"%[0-9.]*[sdifrux](?![a-z])")
_MIXED = re.compile(r"[a-z][A-Z]")


def _emails(text: str) -> Iterator[Span]:
    at = text.find("@")
    while at >= 0:
        local, domain = _LOCAL.search(text[max(0, at - 64) : at]), _DOMAIN.match(text, at + 1)
        if local and domain:
            name = local.group().lstrip(".'-+%")
            if name and name[-1] not in ".'" and ".." not in name and not _is_code(text, at - len(name), name, domain):
                yield Span(at - len(name), domain.end(), "EMAIL", f"{name}@{domain.group()}".lower())
        at = text.find("@", at + 1)


def _is_code(text: str, start: int, name: str, domain: re.Match[str]) -> bool:
    host, ending, before = domain.group(), domain.group(1), text[max(0, start - 1) : start]
    if ending.isascii() and not ending.startswith("xn--") and ending.lower() not in _ENDINGS:
        return True
    if (
        "_" in host
        or _TEMPLATE.search(name)
        or before == "$"
        or (name in "sdi" and before == ")")
        or _REMOTE.match(text, domain.end())
        or (name in ("git", "hg") and _REPOSITORY.match(text, domain.end()))
        or _LOGIN.search(text, max(0, start - 96), start)
    ):
        return True
    if ending.lower() not in _NAMES_IN_CODE:
        return False
    labels = host.split(".")
    return (
        not (ending.islower() or host.isupper())
        or text[domain.end() : domain.end() + 1] in ("(", "[")
        or _MIXED.search(host) is not None
        or len(name) == len(labels[0]) == 1
        or not _LABELS.isdisjoint((name, labels[0]))
        or re.match(r"v?[0-9]+\.[0-9]" if before != "/" else r"v?[0-9]", host) is not None
        or (ending in _FILE_ENDINGS and len(labels) < 3)
    )


# --- cards and accounts ---------------------------------------------------------------------------------------------

_CARD = re.compile(
    r"(?<![0-9A-Za-z_])(?<![0-9][.\-,])(?<![0-9] )"
    r"(?:[2-6][0-9]{12,18}"
    r"|[2-6][0-9]{3}(?P<a>[ \-\u00a0])[0-9]{4}(?P=a)[0-9]{4}(?P=a)[0-9]{4}(?:(?P=a)[0-9]{3})?"
    r"|3[0-9]{3}(?P<b>[ \-\u00a0])[0-9]{6}(?P=b)[0-9]{4,5})"
    r"(?![0-9A-Za-z_])(?![.,\-][0-9])(?! [0-9A-F]{4}\b)"
)
_ID_WORDS = re.compile(
    r"(?:_id|\b(?:order|tracking|invoice|ticket|request|trace|session|message|product|item|build|commit|sku|imei|isbn|uuid)s?)"
    r"(?:[ _\-]?(?:number|num|nr|no|id))?[\"'`]?[ .:#=\"'`]{0,4}\Z",
    re.IGNORECASE,
)
_HEX_GROUP = re.compile(r"\b[0-9A-F]{4}\s\Z")
_ISSUERS = (  # first and last prefix, lengths
    ("34", "34", (15,)),
    ("37", "37", (15,)),  # American Express
    ("4", "4", (13, 16, 19)),  # Visa
    ("51", "55", (16,)),
    ("2221", "2720", (16,)),  # Mastercard
    ("6011", "6011", range(16, 20)),
    ("644", "649", range(16, 20)),
    ("65", "65", range(16, 20)),  # Discover
    ("3528", "3589", range(16, 20)),  # JCB
    ("300", "305", range(14, 20)),
    ("36", "36", range(14, 20)),
    ("38", "39", range(14, 20)),  # Diners Club
    ("62", "62", range(16, 20)),  # UnionPay
    *((prefix, prefix, range(13, 20)) for prefix in ("5018", "5020", "5038", "5893", "6304")),
    ("6759", "6763", range(13, 20)),  # Maestro
    ("2200", "2204", range(16, 20)),  # Mir
    ("508", "508", (16,)),
    ("60", "60", (16,)),  # RuPay
)


def luhn(digits: str) -> bool:
    """Whether a number passes the Luhn check (ISO/IEC 7812-1, annex B)."""
    doubled = [int(digit) * 2 for digit in digits[-2::-2]]
    return (sum(map(int, digits[-1::-2])) + sum(value - 9 * (value > 9) for value in doubled)) % 10 == 0


def card(digits: str) -> bool:
    """Whether digits are a payment card number: an issuer's prefix, a length of that issuer, the Luhn check."""
    return (
        len(set(digits)) > 1
        and luhn(digits)
        and any(len(digits) in lengths and first <= digits[: len(first)] <= last for first, last, lengths in _ISSUERS)
    )


def _cards(text: str) -> Iterator[Span]:
    for match in _CARD.finditer(text):
        digits = _digits(match.group())
        if (
            card(digits)
            and not _ID_WORDS.search(text, max(0, match.start() - 32), match.start())
            and not _HEX_GROUP.search(text, max(0, match.start() - 5), match.start())
        ):
            yield Span(match.start(), match.end(), "CARD", digits)


IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HN": 28, "HR": 21, "HU": 28,
    "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28,
    "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24,
    "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26,
    "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip
_IBAN = re.compile(r"(?<=[A-Za-z]{2})[0-9]{2}[ \-\u00a0]?[A-Za-z0-9]{4}(?:[ \-\u00a0]?[A-Za-z0-9]){7,29}")


def iban(text: str) -> bool:
    """Whether an IBAN without spaces has its country's length and passes the mod-97 check of ISO 13616."""
    text = text.upper()
    if IBAN_LENGTHS.get(text[:2]) != len(text):
        return False
    return int("".join(str(int(sign, 36)) for sign in text[4:] + text[:4])) % 97 == 1


def _ibans(text: str) -> Iterator[Span]:
    for match in _IBAN.finditer(text):
        start = match.start() - 2
        length = IBAN_LENGTHS.get(text[start : start + 2].upper())
        if length is None or (start and text[start - 1].isalnum()):
            continue
        end = start
        signs: list[str] = []
        while end < len(text) and len(signs) < length:
            if text[end].isalnum() and text[end].isascii():
                signs.append(text[end])
            elif text[end] not in " -\u00a0":
                break
            end += 1
        account = "".join(signs).upper()
        if (end == len(text) or not text[end].isalnum()) and len(account) == length and iban(account):
            yield Span(start, end, "IBAN", account)


# --- United States social security numbers --------------------------------------------------------------------------

_SSN = re.compile(r"(?<![\w\-.])([0-9]{3})([- ]?)([0-9]{2})\2([0-9]{4})(?![\w]|[\-.][0-9])")
_SSN_WORDS = re.compile(r"(?:\bssn|social security)[^0-9\n]{0,24}\Z", re.IGNORECASE)


def _ssns(text: str) -> Iterator[Span]:
    for match in _SSN.finditer(text):
        area, separator, group, serial = match.groups()
        if area in ("000", "666") or area >= "900" or group == "00" or serial == "0000":
            continue
        if separator == "-" or _SSN_WORDS.search(text, max(0, match.start() - 48), match.start()):
            if separator == "-" and _other_number(text, match.start()):
                continue
            yield Span(match.start(), match.end(), "SSN", area + group + serial)


# --- telephone ------------------------------------------------------------------------------------------------------

_CODES = """
1 7 20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 84 86 90
91 92 93 94 95 98 211 212 213 216 218 220 221 222 223 224 225 226 227 228 229 230 231 232 233 234 235 236 237 238 239
240 241 242 243 244 245 246 248 249 250 251 252 253 254 255 256 257 258 260 261 262 263 264 265 266 267 268 269 290
291 297 298 299 350 351 352 353 354 355 356 357 358 359 370 371 372 373 374 375 376 377 378 380 381 382 383 385 386
387 389 420 421 423 500 501 502 503 504 505 506 507 508 509 590 591 592 593 594 595 596 597 598 599 670 672 673 674
675 676 677 678 679 680 681 682 683 685 686 687 688 689 690 691 692 800 808 850 852 853 855 856 870 880 886 888 960
961 962 963 964 965 966 967 968 970 971 972 973 974 975 976 977 979 992 993 994 995 996 998
"""
_COUNTRY_CODES = frozenset(_CODES.split())
_INTERNATIONAL = re.compile(
    r"(?<![\w+.,\-])(?<![0-9] )(?P<prefix>\+ ?|00 ?)"
    r"\(?(?P<rest>[1-9](?:[ .\-/()\u00a0]{0,3}[0-9]){6,14})(?!\w)(?![.,\-/:][0-9])"
)
_NORTH_AMERICAN = re.compile(
    r"(?<![\w.\-(+])(?:1[ .\-])?(?:\([2-9][0-9]{2}\)[ \-]?|[2-9][0-9]{2}[.\-])[0-9]{3}[ .\-][0-9]{4}(?![\w\-]|\.[0-9])"
)
_NATIONAL = re.compile(  # with the trunk prefix 0, as most of the world writes them
    r"(?<![\w.,\-+/:(])(?<![0-9] )(?:\(0[1-9][0-9]{0,4}\)|0[1-9][0-9]{0,4})(?:[ .\-/\u00a0]{1,2}[0-9]{2,8}){1,4}"
    r"(?![\w\-/]|[.,:][0-9]| ?[0-9])"
)
_MOBILE = re.compile(  # China; Brazil
    r"(?<![\w.,\-+/:(])(?:1[3-9][0-9][ \-][0-9]{4}[ \-][0-9]{4}|\([1-9][0-9]\) ?9?[0-9]{4}[ \-][0-9]{4})(?![\w\-]|\.[0-9])"
)
_ANY_NUMBER = re.compile(r"(?<![\w.+\-])\(?[0-9](?:[ .\-/()\u00a0]{0,2}[0-9]){6,14}(?![\w]|[.,:\-/][0-9])")
_DATE = re.compile(
    r"[0-9]{1,2}[./\-][0-9]{1,2}[./\-][0-9]{2,4}(?![0-9])|(?:19|20)[0-9]{2}[./\-][0-9]{1,2}[./\-][0-9]{1,2}(?![0-9])"
)
_PHONE_WORDS = re.compile(
    r"(?:\b(?:tele?phone|phone|mobile|cell|cellphone|whatsapp|tel|fax|hotline|"
    r"call (?:me|us|him|her|them)|text me|reach me|"
    r"telefon|telefonnummer|handy|handynummer|mobilnummer|t[eé]l[eé]phone|portable|tel[eé]fono|m[oó]vil|celular|telefone|"
    r"cellulare|telefoon|mobiel|телефон|тел)\b|电话|手机|電話|携帯|전화|휴대폰)"
    r"[^0-9\n(+]{0,24}\Z",
    re.IGNORECASE,
)
_OTHER_WORDS = re.compile(
    r"(?:(?:\b|_)(?:order|sku|part|item|isbn|issn|serial|invoice|ticket|case|model|tracking|reference|ref|id|version|account|doi|patent|"
    r"confirmation|bestellung|bestellnummer|rechnung|rechnungsnummer|commande|facture|pedido|factura|ean|upc|gtin|zip|"
    r"article|product|batch|lot|build|commit|imei|seed|port|offset|timestamp|range|hash|pid|uid|epoch|cve)s?|#)"
    r"(?:[ _\-]?(?:number|num|nr|no|code|id|n°))?[ .:#=\"'\-]{0,4}\Z",
    re.IGNORECASE,
)


_MEASURES = re.compile(  # after a range or a list of numbers
    r"\s?(?:[mµun]s|msec|secs?|seconds?|min|mins|minutes?|hrs?|hours?|days?|weeks?|months?|years?|px|pt|em|dpi|fps|[kKMG]?Hz|[KMGT]i?B|"
    r"bytes?|bits?|tokens?|rows?|lines?|pages?|steps?|epochs?|km|cm|mm|kg|mg|lbs?|oz|ml|kW|kWh|mAh|Nm|rpm|psi|kcal|calories|"
    r"USD|EUR|GBP|dollars?|euros?|points?|users|people|times)\b|\s?[°%€$£]"
)
_ZIP_CODE = re.compile(r"\b[A-Z]{2}\s{1,12}\Z")
_TIMES = re.compile(r"(?:[01][0-9]|2[0-4])[.:]?[0-5][0-9] ?- ?(?:[01][0-9]|2[0-4])[.:]?[0-5][0-9]\b")


def _is_measured(text: str, match: re.Match[str]) -> bool:
    """Whether what is written like a telephone number is a range, sizes, times of a day, or columns of a table."""
    if _is_phone(text, match.start()):
        return False
    groups = re.findall("[0-9]+", match.group())
    return (
        _MEASURES.match(text, match.end()) is not None
        or _TIMES.match(match.group()) is not None
        or _ZIP_CODE.search(text, max(0, match.start() - 15), match.start()) is not None
        or all(int(group) % 50 == 0 for group in groups)
        or all(group[0] == "0" for group in groups)
        or len(set("".join(groups))) < 3
        or ("." in match.group() and {len(group) for group in groups} == {4})
    )


def _phones(text: str) -> Iterator[Span]:
    for match in _INTERNATIONAL.finditer(text):
        digits = _digits(match.group("rest").replace("(0)", ""))
        code = next((digits[:size] for size in (1, 2, 3) if digits[:size] in _COUNTRY_CODES), None)
        written_apart = len(match.group("rest")) > len(digits)
        plus = match.group("prefix") == "+" or (match.group("prefix") == "+ " and written_apart)
        pairs = match.group("prefix") == "00 " and all(len(part) == 2 for part in match.group("rest").split())  # bytes
        written_00 = match.group("prefix").startswith("00") and _is_measured(text, match)
        if pairs or written_00 or (match.group("prefix") == "+" and re.fullmatch(r"[0-9]+\.[0-9]+", match.group("rest"))):
            continue
        if not code or not 8 <= len(digits) <= 15 or (code == "1" and len(digits) != 11) or len(set(digits)) < 3:
            continue
        if plus or (match.group("prefix").startswith("00") and (written_apart or _is_phone(text, match.start()))):
            yield Span(match.start(), match.end(), "PHONE", digits)
    for match in _NORTH_AMERICAN.finditer(text):
        if not _other_number(text, match.start()) and not _is_measured(text, match):
            digits = _digits(match.group())
            yield Span(match.start(), match.end(), "PHONE", digits[-10:])
    for match in _NATIONAL.finditer(text):
        digits = _digits(match.group())
        if (
            9 <= len(digits) <= 12
            and not _is_date(match.group())
            and not _counts_up(match.group())
            and not _other_number(text, match.start())
            and not _is_measured(text, match)
        ):
            yield Span(match.start(), match.end(), "PHONE", digits)
    for match in _MOBILE.finditer(text):
        if not _other_number(text, match.start()):
            yield Span(match.start(), match.end(), "PHONE", _digits(match.group()))
    for match in _ANY_NUMBER.finditer(text):
        digits = _digits(match.group())
        if len(digits) <= 15 and _is_phone(text, match.start()) and not _is_date(match.group()) and len(set(digits)) > 2:
            yield Span(match.start(), match.end(), "PHONE", digits)


def _is_phone(text: str, start: int) -> bool:
    return _PHONE_WORDS.search(text, max(0, start - 48), start) is not None


def _other_number(text: str, start: int) -> bool:
    return _OTHER_WORDS.search(text, max(0, start - 32), start) is not None


def _is_date(text: str) -> bool:
    match = _DATE.match(text)
    numbers = [int(part) for part in re.findall("[0-9]+", match.group())] if match else []
    return len(numbers) == 3 and (numbers[0] > 1900 or (min(numbers[:2]) <= 12 and max(numbers[:2]) <= 31))


def _counts_up(text: str) -> bool:
    numbers = [int(part) for part in re.findall("[0-9]+", text)]
    return len({later - earlier for earlier, later in pairwise(numbers)}) == 1 and len(numbers) > 2


def _digits(text: str) -> str:
    return "".join(sign for sign in text if "0" <= sign <= "9")


# --- internet addresses ---------------------------------------------------------------------------------------------

_IPV4 = re.compile(r"(?<![\w.\-/])[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?!\w|\.\w|-\w)")
_IPV4_IN_URL = re.compile(r"(?<=//)[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?!\w|\.\w|-\w)")
_VERSION_WORDS = re.compile(
    r"(?:(?:\b|_)(?:v|ver|version|versions|release|released|build|firmware|driver|update|upgrade[d]?(?: to)?|section|sec|"
    r"chapter|clause|figure|table|rule|oid|kernel|chrome|chromium|firefox|edge|opera|safari|assembly\w*|revision)(?:\b|_+)|§)"
    r"(?: (?:is|was|to|from|number|no))?[ .:='`\"(*]{0,3}\Z|(?:[=<>~!^]=|[<>~^]) ?\Z",
    re.IGNORECASE,
)
_HOST_WORDS = re.compile(
    r"(?:\b(?:ip|ipv4|address|addr|host|hostname|server|client|peer|ping|dns|nameserver|gateway|router|proxy|ssh|curl|telnet|traceroute|"
    r"from|at|bind|listen|remote|node)\w{0,3}\b[\"']?[ :=\"'`(\[]{0,4}|//|@)\Z",
    re.IGNORECASE,
)
_IPV6_SIGN = re.compile(r":[0-9A-Fa-f]{0,4}:")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4})(?![\w:])")


def _ipv4(text: str) -> Iterator[Span]:
    for pattern in (_IPV4, _IPV4_IN_URL):
        for match in pattern.finditer(text):
            try:
                address = IPv4Address(match.group())
            except AddressValueError:
                continue
            if address.is_loopback or address.is_multicast or match.group().startswith(("255.", "0.")):
                continue
            # small numbers alone are a version or a section: one address of some thousands has only such
            names_host = (
                (max(address.packed) >= 32 and max(address.packed[:3]) >= 10)
                or address.is_private
                or re.match(":[0-9]", text[match.end() : match.end() + 2])
                or _HOST_WORDS.search(text, max(0, match.start() - 24), match.start())
            )
            if names_host and not _VERSION_WORDS.search(text, max(0, match.start() - 32), match.start()):
                yield Span(match.start(), match.end(), "IP", str(address))


def _ipv6(text: str) -> Iterator[Span]:
    for match in _IPV6.finditer(text):
        written = match.group()
        if written.endswith(":") and not written.endswith("::"):  # "from 2001:db8::1: refused"
            written = written[:-1]
        try:
            address = IPv6Address(written)
        except AddressValueError:
            continue
        # std::dec::b and ab::cd look like IPv6: only address ranges of hosts count
        first = int(address) >> 112
        host = 0x2000 <= first <= 0x3FFF or 0xFC00 <= first <= 0xFEBF or first == 0x64 or address.ipv4_mapped is not None
        if host and not address.is_loopback:
            yield Span(match.start(), match.start() + len(written), "IP", str(address))
