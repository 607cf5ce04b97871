"""Normalises local paths and uris, so that each file has one uri: uris of objects are keys of tables. Links are resolved in the
recipe's path (before a glob's first wildcard): a link such as `latest` may point elsewhere tomorrow. Below that, names stay as
listed.
"""

import os
import re
from glob import has_magic
from pathlib import Path
from unicodedata import normalize
from urllib.parse import unquote

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*)://")
_FILE = re.compile(r"file:(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)


def is_local(uri: str) -> bool:
    """Whether a uri is a path or a file:// uri."""
    return bool(_FILE.match(uri)) or not _SCHEME.match(uri)


def local_path(uri: str, home: Path | None = None) -> str | None:
    """The absolute path of a local uri, relative to `home` (default: the working directory); None for a remote uri."""
    if not is_local(uri):
        return None
    path = _existing(*_spellings(uri), home=str(home or Path.cwd()))
    if "\0" in path:  # no file system has such a name; opening it raises the error
        return path
    if os.path.lexists(path) or not has_magic(path):
        return os.path.realpath(path)
    fixed, rest = _before_wildcard(path)
    return os.path.join(os.path.realpath(fixed), rest)  # noqa: PTH118 - Path would drop a trailing slash


def plain_path(uri: str) -> str:
    """The absolute path of a local uri without `.`, `..`, `//` and `~`; links stay."""
    return os.path.normpath(_existing(*_spellings(uri), home=str(Path.cwd())))


def remote_uri(uri: str) -> str:
    """A remote uri with its scheme in lower case, s3a:// as s3://. Keys stay as they are: s3://logs//x is not s3://logs/x."""
    scheme = _SCHEME.match(uri)
    if not scheme:
        return uri
    name = scheme[1].lower()
    return f"{'s3' if name == 's3a' else name}{uri[scheme.end(1) :]}"


def absolute_uri(uri: str, home: Path | None = None) -> str:
    """The uri that objects are listed under: an absolute path, or a remote uri."""
    return local_path(uri, home) or remote_uri(uri)


def _spellings(uri: str) -> tuple[str, ...]:
    """Paths that a local uri may mean, the likeliest first: most writers percent-encode file:// uris."""
    scheme = _FILE.match(uri)
    if not scheme:
        return (uri,)
    written = uri[scheme.end() :]
    return (unquote(written, errors="surrogateescape"), written)


def _existing(*spellings: str, home: str) -> str:
    """The spelling that exists, else the first: as written, or with composed or decomposed accents (macOS)."""
    paths = [os.path.join(home, os.path.expanduser(each)) for each in spellings]  # noqa: PTH111, PTH118 - `~nobody` is a name
    variants = [path for path in paths if "\0" not in path]
    variants += [normalize(form, path) for path in variants for form in ("NFC", "NFD")]
    return next((path for path in variants if os.path.lexists(path)), paths[0])


def _before_wildcard(path: str) -> tuple[str, str]:
    """A glob's path before its first wildcard, and the rest."""
    head = re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0]
    return head or "/", path[len(head) :].lstrip("/")
