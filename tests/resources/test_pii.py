"""What is replaced, what is left alone, and that JSON stays JSON."""

import json
import time

import pytest

from resources.pii import Redactor
from resources.pii_patterns import iban, luhn


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("write to Ann.Lee+x@mail.example.co.uk, please", "write to <EMAIL_1>, please"),
        ("a@b.org and A@B.org and c@d.org", "<EMAIL_1> and <EMAIL_1> and <EMAIL_2>"),
        ("card 4111-1111-1111-1111.", "card <CARD_1>."),
        ("amex 378282246310005", "amex <CARD_1>"),
        ("pay DE89 3704 0044 0532 0130 00 now", "pay <IBAN_1> now"),
        ("pay GB82WEST12345698765432", "pay <IBAN_1>"),
        ("key sk-proj-abcdefghij0123456789ABCD and AKIAIOSFODNN7EXAMPLE", "key <SECRET_1> and <SECRET_2>"),
        ("token ghp_0123456789abcdefghijABCDEFGHIJ012345", "token <SECRET_1>"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "<SECRET_1>"),
        ("call +49 30 901820 or +1 (555) 010-9999", "call <PHONE_1> or <PHONE_2>"),
        ("call (555) 234-5678 or 555-234-5678", "call <PHONE_1> or <PHONE_1>"),
    ],
)
def test_personal_data_is_replaced(text, redacted):
    assert Redactor().redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112 fails Luhn",
        "order 1234567890123456",
        "0000 0000 0000 0000",
        "pi is 3.14159265358979323846",
        "DE88 3704 0044 0532 0130 00 fails its checksum",
        "@property and a @ b",
        "x = a+12 - 345",
        "2026-06-01 12:30:45",
        "range(1000000, 20000000)",
        "sk-short",
        "version 1.2.3-4567",
        "f(1, +12345)",
        "ISBN 978-3-16-148410-0",
        "user@localhost",
    ],
)
def test_what_only_looks_like_it_is_left_alone(text):
    assert Redactor().redact(text) == text


def test_json_stays_json_whatever_stands_before_the_value():
    text = json.dumps(
        [{"content": 'line\na@b.org\t"a@b.org"', "n": 1, "tool_calls": [{"arguments": '{"to": "a@b.org"}'}]}]
    )
    redactor = Redactor()
    assert json.loads(redactor.redact_json(text)) == [
        {"content": 'line\n<EMAIL_1>\t"<EMAIL_1>"', "n": 1, "tool_calls": [{"arguments": '{"to": "<EMAIL_1>"}'}]}
    ]
    assert redactor.found == {"EMAIL": 3}
    assert Redactor().redact_json("not json a@b.org") == "not json <EMAIL_1>"


def test_checksums():
    assert luhn("4111111111111111") and not luhn("4111111111111112") and luhn("79927398713")
    assert iban("DE89370400440532013000") and not iban("DE89370400440532013001")


def test_long_runs_of_near_misses_do_not_take_for_ever():
    text = "1 " * 50_000 + "a" * 50_000 + "." * 1_000 + "+1 2" * 20_000 + "x@" * 20_000 + "A1 " * 20_000
    began = time.monotonic()
    Redactor().redact(text)
    assert time.monotonic() - began < 20  # seconds; a pattern that backtracks takes hours
