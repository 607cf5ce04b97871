"""DSSE envelopes: a JSON statement with a signature over its type and its bytes.

Form: https://github.com/secure-systems-lab/dsse, envelope.md and protocol.md. The signed bytes are the pre-authentication
encoding of protocol.md: "DSSEv1", then length and bytes of the type and of the body.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import date
from typing import Any

from resources.signing.keys import SigningKey, TrustedKey, TrustedKeys

IN_TOTO = "application/vnd.in-toto+json"


class EnvelopeError(Exception):
    """An envelope is damaged, or no trusted key signed it."""


def sealed(statement: Mapping[str, Any], payload_type: str, key: SigningKey) -> str:
    """The envelope as JSON text."""
    body = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    signature = key.sign(_signed_bytes(payload_type, body))
    envelope = {
        "payload": base64.b64encode(body).decode(),
        "payloadType": payload_type,
        "signatures": [{"keyid": key.id, "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(envelope) + "\n"


def opened(text: str, payload_type: str, trusted: TrustedKeys, today: date) -> tuple[dict[str, Any], TrustedKey]:
    """The statement, and the trusted key that signed it. Raises EnvelopeError."""
    try:
        envelope = json.loads(text)
        body = base64.b64decode(envelope["payload"], validate=True)
        signatures = [(item["keyid"], base64.b64decode(item["sig"], validate=True)) for item in envelope["signatures"]]
        statement = json.loads(body)
        kind_of_payload = envelope["payloadType"]
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise EnvelopeError("it is no DSSE envelope") from error
    if kind_of_payload != payload_type:
        raise EnvelopeError(f"it is an envelope of {kind_of_payload}, not of {payload_type}")
    if not isinstance(statement, dict):
        raise EnvelopeError("its payload is no JSON object")
    expired: TrustedKey | None = None
    for id, signature in signatures:
        key = trusted.named(id)
        if key is None or not key.signed(_signed_bytes(payload_type, body), signature):
            continue
        if not key.is_expired(today):
            return statement, key
        expired = key
    if expired is not None:
        raise EnvelopeError(f"its key {expired.name} expired on {expired.until}")
    raise EnvelopeError(f"no key in {trusted.place} signed it as it is")


def _signed_bytes(payload_type: str, body: bytes) -> bytes:
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body)
