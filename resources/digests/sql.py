"""The digest of an SQL file's meaning: its tokens, without comments and layout. Text in quotes stays as it is."""

import hashlib
import re

_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | --[^\n]* )
    | (?P<comment> /\* )
    | (?P<dollar> \$(?:[^\W\d]\w*)?\$ )
    | (?P<escaped> [eE]'(?:[^'\\]|\\.|'')*' )
    | (?P<text> [xXbB]?'(?:[^']|'')*' | "(?:[^"]|"")*" )
    | (?P<word> \$?[^\W\d][\w$]* | \$\d+ | \.?\d[\w.]* )
    | (?P<operator> (?:(?!--|/\*)[+\-*/<>=~!@#%^&|`?:])+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def sql_digest(text: str) -> str:
    """sha256 of the tokens of an SQL text. Raises ValueError for a comment or a dollar quote that does not end."""
    return hashlib.sha256("\0".join(sql_tokens(text)).encode()).hexdigest()


def sql_tokens(text: str) -> list[str]:
    tokens, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:  # `other` is any character
            break
        place, token = match.end(), match[0]
        if match.lastgroup == "comment":
            place = _end_of_comment(text, place)
        elif match.lastgroup == "dollar":
            end = text.find(token, place)
            if end < 0:
                raise ValueError(f"the text that begins with {token} has no end: close it with {token}")
            tokens.append(token + text[place : end + len(token)])
            place = end + len(token)
        elif match.lastgroup != "space":
            tokens.append(token)
    return tokens


def _end_of_comment(text: str, place: int) -> int:
    depth = 1
    for mark in re.finditer(r"/\*|\*/", text[place:]):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return place + mark.end()
    raise ValueError("a comment has no end: close it with */")
