"""Finds keys, tokens, passwords and credentials in URLs in a text, as spans of kind SECRET. Tokens are recognised by the
prefixes that issuers document; other secrets by the name that they are assigned to, and by how random they look."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Where a value stands in a text, its kind, and the normalised value that tells equal values."""

    start: int
    end: int
    kind: str
    identity: str


_TOKENS = {  # prefix of a token: its pattern
    "-----BEGIN": r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]{0,8192}?-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----",
    # OpenAI, Anthropic, OpenRouter; a digit tells a key from the-names-of-things
    "sk-": r"sk-(?!ssh-|ecdsa-)(?:ant-|proj-|or-|svcacct-|lf-)?(?=[A-Za-z_\-]{0,200}[0-9])[A-Za-z0-9_\-]{20,}",
    "pk-lf-": r"pk-lf-[0-9a-f\-]{36}",  # Langfuse
    "k_live_": r"(?:sk|rk|pk)_live_[A-Za-z0-9]{16,}",  # Stripe
    "k_test_": r"(?:sk|rk|pk)_test_[A-Za-z0-9]{16,}",
    "whsec_": r"whsec_[A-Za-z0-9]{24,}",
    "gh": r"gh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
    "github_pat_": r"github_pat_[A-Za-z0-9_]{22,}",
    "gl": r"gl(?:pat|dt|rt|soat|ptt)-[A-Za-z0-9_\-]{20,}",  # GitLab
    "AKIA": r"AKIA[0-9A-Z]{16}(?![0-9A-Za-z])",
    "ASIA": r"ASIA[0-9A-Z]{16}(?![0-9A-Za-z])",  # AWS access key id
    "AIza": r"AIza[0-9A-Za-z_\-]{35}",  # Google
    "ya29.": r"ya29\.[0-9A-Za-z_\-]{20,}",
    "GOCSPX-": r"GOCSPX-[0-9A-Za-z_\-]{28}",
    "xox": r"xox[abeoprs]-[A-Za-z0-9\-]{10,}",
    "xapp-": r"xapp-[0-9]-[A-Za-z0-9\-]{20,}",  # Slack
    "hooks.slack.com/services/": r"hooks\.slack\.com/services/T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]{20,}",
    "hf_": r"hf_[A-Za-z0-9]{30,}",  # Hugging Face
    "npm_": r"npm_[A-Za-z0-9]{36}",
    "pypi-": r"pypi-[A-Za-z0-9_\-]{50,}",
    "SG.": r"SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}",  # SendGrid
    "dop_v1_": r"do[opr]_v1_[a-f0-9]{64}",  # DigitalOcean
    "shp": r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",  # Shopify
    "sq0": r"sq0(?:atp|csp|idp)-[A-Za-z0-9_\-]{22,}",  # Square
    "dapi": r"dapi[a-f0-9]{32}",  # Databricks
    "gsk_": r"gsk_[A-Za-z0-9]{40,}",
    "r8_": r"r8_[A-Za-z0-9]{37,}",
    "xai-": r"xai-[A-Za-z0-9]{40,}",
    "pplx-": r"pplx-[A-Za-z0-9]{40,}",
    "nvapi-": r"nvapi-[A-Za-z0-9_\-]{40,}",
    "hvs.": r"hvs\.[A-Za-z0-9_\-]{24,}",
    "glsa_": r"glsa_[A-Za-z0-9]{32}_[a-f0-9]{8}",
    "lin_api_": r"lin_api_[A-Za-z0-9]{40}",
    "figd_": r"figd_[A-Za-z0-9_\-]{40,}",
    "ntn_": r"ntn_[A-Za-z0-9]{40,}",
    "ATATT3": r"ATATT3[A-Za-z0-9_\-=]{50,}",
    "AGE-SECRET-KEY-1": r"AGE-SECRET-KEY-1[0-9A-Z]{58}",
    "eyJ": r"eyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}",  # JSON web token
    ":AA": r"[0-9]{8,10}:AA[A-Za-z0-9_\-]{33}(?![A-Za-z0-9_\-])",  # Telegram bot
}
TOKEN_PREFIXES = tuple(_TOKENS)
_TOKEN_PATTERNS = {prefix: re.compile(r"(?<![A-Za-z0-9_])" + pattern) for prefix, pattern in _TOKENS.items()}


def tokens(text: str) -> Iterator[Span]:
    for prefix, pattern in _TOKEN_PATTERNS.items():
        if prefix in text:
            for match in pattern.finditer(text):
                yield Span(match.start(), match.end(), "SECRET", match.group())


_USERINFO = re.compile(r"[^\s/?#@\"'<>`]{0,256}?:(?P<secret>[^\s/?#\"'<>`]{1,256})@(?=[A-Za-z0-9\[])")
_QUERY = re.compile(
    r"[?&;](?:[A-Za-z0-9_\-]*(?:token|api_?key|apikey|secret|password|passwd|pwd|signature|credential|auth|session_?id)"
    r"|sig|key|X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|X-Goog-Signature|X-Goog-Credential)"
    r"=(?P<secret>[^\s&#\"'<>`;)\]}]{6,4096})",
    re.IGNORECASE,
)


_ENDS_ADDRESS = re.compile(r"[\s\"'<>`]")


def url_credentials(text: str) -> Iterator[Span]:
    at, end = text.find("://"), 0
    while at >= 0:
        user = _USERINFO.match(text, at + 3)
        if user and not _is_stand_in(user.group("secret")):
            yield Span(at + 3, user.end() - 1, "SECRET", user.group()[:-1])
        if at >= end:  # a URL may contain others: its parameters are read once
            blank = _ENDS_ADDRESS.search(text, at)
            end = blank.start() if blank else len(text)
            for match in _QUERY.finditer(text, at, end):
                if not _is_stand_in(match.group("secret")):
                    yield Span(*match.span("secret"), "SECRET", match.group("secret"))
        at = text.find("://", at + 3)


_BEARER = re.compile(r"\b(?:[Bb]earer|BEARER)[ :]+(?P<secret>[A-Za-z0-9._~+/\-]{16,4096}=*)")
_BASIC = re.compile(r"[Aa]uthorization\W{1,5}[Bb]asic (?P<secret>[A-Za-z0-9+/]{8,4096}={0,2})")
_ASSIGNED = re.compile(r"(?::=|=>|[:=]|\bis)[ \t]*(?P<quote>[\"'`]?)(?P<secret>[^\s\"'`,;<>]{6,512})")
_NEXT_PARAMETER = re.compile(r"&[A-Za-z_][A-Za-z0-9_\-]*=")
_SECRET_NAME = re.compile(
    r"(?:(?P<password>passw(?:or)?[dt]|passphrase|passcode|\bpwd|contrase[ñn]a|mot de passe|senha|wachtwoord|"
    r"пароль|密码|パスワード)"
    r"|(?:api|access|secret|private|auth|account|encryption|signing|client|master|shared)"
    r"[_\- .]?(?:key|token|secret)(?:[_\- ]?id)?"
    r"|secret|auth[_\-]?token|token|credential)s?\w{0,8}[\"'`\]]{0,2}[ \t]*\Z",
    re.IGNORECASE,
)
_STAND_IN = re.compile(
    r"your|example|changeme|placeholder|redacted|dummy|<|\$\{?|\{\{|%\(|x{4,}|\*{3,}|\.{3}|\.env|environ|getenv|process\.|config\.|"
    r"secrets?\.|self\.|settings\.|null|none|undefined|true|false|string|\(|\A\w+\[|\Apass(?:word|wd)?\Z",
    re.IGNORECASE,
)


def _is_stand_in(value: str) -> bool:
    return _STAND_IN.search(value) is not None or len(set(value)) < 4


def assigned_secrets(text: str) -> Iterator[Span]:
    if "earer" in text or "EARER" in text:
        for match in _BEARER.finditer(text):
            if _random(match.group("secret")):
                yield Span(*match.span("secret"), "SECRET", match.group("secret"))
    if "asic " in text:
        for match in _BASIC.finditer(text):
            yield Span(*match.span("secret"), "SECRET", match.group("secret"))
    for match in _ASSIGNED.finditer(text):
        name = _SECRET_NAME.search(text, max(0, match.start() - 40), match.start())
        if name is None:
            continue
        value = match.group("secret").rstrip(").]}!?" if not match.group("quote") else "")
        value = _NEXT_PARAMETER.split(value, maxsplit=1)[0]
        if value.endswith(".") or _is_stand_in(value):
            continue
        start = match.start("secret")
        if name.group("password"):
            kinds = sum(bool(re.search(part, value)) for part in ("[a-z]", "[A-Z]", "[0-9]", r"[^\w]"))
            if kinds >= 2 and re.search("[0-9]", value) and len(value) >= 6:
                yield Span(start, start + len(value), "SECRET", value)
        elif _random(value):
            yield Span(start, start + len(value), "SECRET", value)


def _random(value: str) -> bool:
    """Whether a value looks random: 16 or more letters and digits of high entropy."""
    if len(value) < 16 or not re.fullmatch(r"[A-Za-z0-9_\-+/=.~:!@#%^&*]+", value):
        return False
    if not re.search("[0-9]", value) or not re.search("[A-Za-z]", value):
        return False
    counts = Counter(value)
    entropy = -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
    return entropy >= 3.0  # bits per character: random hex reaches 3.3 at 16 characters; words_with_1_digit reach about 2.9
