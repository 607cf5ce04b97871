"""Asks vLLM for the token ids of prompt and answer on behalf of the capture layer, without parsing a body.

    asking(b'{"model": ...}')         # the body with "return_token_ids": true; None where it asks already or must not be asked
    without_ids(answer)               # a whole answer without the ids that the client did not ask for

Both work on the bytes of JSON: a quotation mark inside a JSON string is written with a backslash, so `"token_ids":` in a body
is a key and never text. Streams are passed on as they are, with the ids: clients ignore fields that they do not know.
"""

from __future__ import annotations

import re

ASKED = b'"return_token_ids"'
_BEGINS = re.compile(rb"\s*\{(?=\s*\")")
_IDS = re.compile(rb',\s*"(?:prompt_)?token_ids"\s*:\s*(?:\[[\d,\s]*\]|null)')


def asking(body: bytes) -> bytes | None:
    """The body with the request for ids, or None: it names return_token_ids itself, is no JSON object, or asks for `echo`,
    whose answer would change."""
    begin = _BEGINS.match(body)
    if begin is None or ASKED in body or b'"echo"' in body:
        return None
    return b"%s%s:true,%s" % (body[:begin.end()], ASKED, body[begin.end():])


def without_ids(answer: bytes) -> bytes:
    """The answer without `token_ids` and `prompt_token_ids`. Both follow other keys wherever vLLM writes them."""
    return _IDS.sub(b"", answer)
