"""Personal data in chat messages, replaced by typed placeholders: e-mail, phone, payment card, IBAN, secrets.

    redactor = Redactor()                                          # one for each session
    redactor.redact_json('[{"role":"user","content":"mail a@b.org"}]')   # ... "mail <EMAIL_1>"
    redactor.found                                                 # {"EMAIL": 1}

The same value gets the same placeholder for as long as one redactor is used; numbers count up from 1 in the order in
which values first appear. Patterns propose, checksums decide: a card number must pass the Luhn check (ISO/IEC 7812-1),
an IBAN its mod-97 check (ISO 13616). Phone numbers are taken only in forms that code and prices do not have: with a
leading +, or as 3-3-4 digits with separators. Names and places would need a model and are not looked for.

`sql/clean/pii_candidates.sql` finds the rows worth a look; only those come here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

_EMAIL = (
    r"[A-Za-z0-9._%+\-]{1,64}@"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9\-]{0,62})\.|[A-Za-z0-9]\.)+[A-Za-z]{2,24}(?![A-Za-z0-9_])"
)

_SECRET = "|".join(
    [
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]{0,8192}?-----END [A-Z ]*PRIVATE KEY-----",
        r"\bsk-(?:ant-|proj-|or-|svcacct-)?[A-Za-z0-9_\-]{20,}",   # OpenAI, Anthropic, OpenRouter
        r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}",          # Stripe
        r"\bgh[pousr]_[A-Za-z0-9]{36,}",                           # GitHub
        r"\bgithub_pat_[A-Za-z0-9_]{22,}",
        r"\bglpat-[A-Za-z0-9_\-]{20,}",                            # GitLab
        r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",                          # AWS access key id
        r"\bAIza[0-9A-Za-z_\-]{35}",                               # Google
        r"\bxox[abeoprs]-[A-Za-z0-9\-]{10,}",                      # Slack
        r"\bhf_[A-Za-z0-9]{30,}",                                  # Hugging Face
        r"\bnpm_[A-Za-z0-9]{36}",
        r"\bpypi-[A-Za-z0-9_\-]{50,}",
        r"\bSG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}",         # SendGrid
        r"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}",   # JSON web token
    ]
)

_IBAN = r"\b[A-Z]{2}[0-9]{2}(?:[A-Z0-9]{11,30}|(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,3})?)\b"

_CARD = r"(?<![0-9.\-])[2-6][0-9]{3}(?:[ \-]?[0-9]){9,15}(?![0-9]|[.\-][0-9])"

_PHONE = (
    r"(?<![\w+])\+[1-9][0-9]{0,2}[ .\-]?(?:\([0-9]{1,4}\)[ .\-]?)?[0-9]{1,5}(?:[ .\-]?[0-9]{2,5}){1,5}(?![0-9\w])"
    r"|(?<![\w.\-(])(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.\-])[0-9]{3}[.\-][0-9]{4}(?![\w\-]|\.[0-9])"
)

_PATTERN = re.compile(
    f"(?P<SECRET>{_SECRET})|(?P<EMAIL>{_EMAIL})|(?P<IBAN>{_IBAN})|(?P<CARD>{_CARD})|(?P<PHONE>{_PHONE})"
)


def luhn(digits: str) -> bool:
    """Whether a number passes the Luhn check (ISO/IEC 7812-1, annex B)."""
    doubled = [int(digit) * 2 for digit in digits[-2::-2]]
    return (sum(map(int, digits[-1::-2])) + sum(value - 9 * (value > 9) for value in doubled)) % 10 == 0


def iban(text: str) -> bool:
    """Whether letters and digits without spaces pass the mod-97 check of ISO 13616."""
    return 15 <= len(text) <= 34 and int("".join(str(int(letter, 36)) for letter in text[4:] + text[:4])) % 97 == 1


class Redactor:
    """Replaces what it finds, and remembers it: one for each session."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._numbers: dict[tuple[str, str], int] = {}
        self._last: Counter[str] = Counter()

    def redact(self, text: str) -> str:
        """The text with placeholders such as <EMAIL_1>."""
        return _PATTERN.sub(self._replace, text)

    def redact_json(self, text: str) -> str:
        """JSON text with every string value in it redacted; text that is not JSON is redacted as it stands."""
        try:
            value = json.loads(text)
        except ValueError:
            return self.redact(text)
        return json.dumps(self._walk(value), ensure_ascii=False, separators=(",", ":"))

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, list):
            return [self._walk(item) for item in value]
        if isinstance(value, dict):
            return {key: self._walk(item) for key, item in value.items()}
        return value

    def _replace(self, match: re.Match[str]) -> str:
        kind, text = match.lastgroup or "", match.group()
        bare = re.sub(r"[^0-9A-Za-z]", "", text)
        if kind == "CARD" and not (13 <= len(bare) <= 19 and len(set(bare)) > 1 and luhn(bare)):
            return text
        if kind == "IBAN" and not iban(bare):
            return text
        if kind == "PHONE" and not 8 <= len(bare) <= 15:
            return text
        identity = text.lower() if kind == "EMAIL" else text if kind == "SECRET" else bare
        number = self._numbers.get((kind, identity))
        if number is None:
            self._last[kind] += 1
            number = self._numbers[(kind, identity)] = self._last[kind]
        self.found[kind] += 1
        return f"<{kind}_{number}>"
