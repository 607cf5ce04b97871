"""Marks JSON texts that may hold personal data: one quick pass over the bytes of a column, in compiled code. Every text in
which `pii_patterns` finds something must be marked; one that is marked in vain only costs its parsing."""

from functools import cache

import numpy as np
import pyarrow as pa

from resources.curating.personal_data.secret_patterns import TOKEN_PREFIXES
from resources.curating.pii_patterns import IBAN_LENGTHS
from resources.curating.shingles import TextBuffer, in_groups, plain_buffer

# Words after which a value may be a secret, or a number a telephone number; ASCII letters match in any case.
_SECRET_WORDS = (
    "passw", "passphrase", "passcode", "pwd", "contrase", "mot de passe", "senha", "wachtwoord", "пароль", "密码", "パスワード",
    "secret", "token", "credential", "api_key", "apikey", "api-key", "api key", "api.key", "access_key", "access-key",
    "access key", "accesskey", "private_key", "private-key", "private key", "privatekey", "auth_key", "auth-key", "auth key",
    "authkey", "account_key", "account-key", "account key", "accountkey", "encryption_key", "encryption-key",
    "encryption key", "encryptionkey", "signing_key", "signing-key", "signing key", "signingkey", "client_key", "client-key",
    "client key", "clientkey", "master_key", "master-key", "master key", "masterkey", "shared_key", "shared-key",
    "shared key", "sharedkey", "secret_key", "bearer",
)  # fmt: skip
_PHONE_WORDS = (
    "phone", "mobile", "cell", "whatsapp", "tel", "fax", "hotline", "call me", "call us", "call him", "call her", "call them",
    "text me", "reach me", "handy", "mobil", "téléphone", "télephone", "portable", "teléfono", "telefono", "móvil", "movil",
    "celular", "telefo", "телефон", "тел", "电话", "手机", "電話", "携帯", "전화", "휴대폰", "ssn", "social security",
)  # fmt: skip
_TOKEN, _SECRET_WORD, _NUMBER_WORD = 1, 2, 3


def might_hold(texts: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """For each text, whether it may hold personal data. A null holds none."""
    from resources.curating.personal_data.pii_kernels import suspects

    words, lengths = _words(), _iban_lengths()

    def work(_: int, texts: TextBuffer) -> np.ndarray:
        return suspects(texts.content, texts.edges, *words, lengths)

    return np.concatenate([np.zeros(0, dtype=bool), *in_groups(work, plain_buffer(texts))])


@cache
def _words() -> tuple[np.ndarray, ...]:
    """The words as one buffer, offsets and kinds, sorted by their first two bytes; and the first word for each two bytes."""
    kinds = {_TOKEN: (*TOKEN_PREFIXES, "uthorization"), _SECRET_WORD: _SECRET_WORDS, _NUMBER_WORD: _PHONE_WORDS}
    words = [(spelt.encode(), kind) for kind, list_ in kinds.items() for word in list_ for spelt in _spellings(word)]
    words.sort(key=lambda pair: (pair[0][:2], pair[0]))
    starts = np.full(1 << 16, -1, dtype=np.int32)
    for number in reversed(range(len(words))):
        starts[words[number][0][0] << 8 | words[number][0][1]] = number
    signs = np.zeros(1 << 16, dtype=np.bool_)
    for word, kind in words:
        spellings = (word,) if kind == _TOKEN else (word, word.upper(), word.title(), word[:1] + word[1:].upper())
        for spelling in spellings:
            signs[spelling[0] << 8 | spelling[1]] = True
    edges = np.concatenate([[0], np.cumsum([len(word) for word, _ in words])]).astype(np.int32)
    return (
        np.frombuffer(b"".join(word for word, _ in words), dtype=np.uint8), edges,
        np.array([kind for _, kind in words], dtype=np.uint8), starts, signs,
    )  # fmt: skip


def _spellings(word: str) -> set[str]:
    if word.isascii():
        return {word}
    return {"".join(sign.lower() if sign.isascii() else sign for sign in spelt) for spelt in (word, word.title(), word.upper())}


@cache
def _iban_lengths() -> np.ndarray:
    lengths = np.zeros(26 * 26, dtype=np.uint8)
    for country, length in IBAN_LENGTHS.items():
        lengths[(ord(country[0]) - 65) * 26 + ord(country[1]) - 65] = length
    return lengths
