"""Sources of logs: the settings in a recipe, the objects under a uri, and the bytes of an object. A uri is a file, a directory,
a glob, file://, s3://, or any URL that fsspec knows; credentials come from the environment."""

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import date
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol
from unicodedata import normalize
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from model_ops.files import LocalPath
from resources.records import FieldMapping
from resources.sources.listing import LogObject, SourceError, local_objects, open_remote, remote_objects
from stores import s3

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*)://")
_FILE = re.compile(r"file:(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)


def is_local(uri: str) -> bool:
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
    paths = [os.path.join(home, os.path.expanduser(each)) for each in spellings]  # noqa: PTH111, PTH118 - `~nobody` is a name
    variants = [path for path in paths if "\0" not in path]
    variants += [normalize(form, path) for path in variants for form in ("NFC", "NFD")]
    return next((path for path in variants if os.path.lexists(path)), paths[0])


def _before_wildcard(path: str) -> tuple[str, str]:
    head = re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0]
    return head or "/", path[len(head) :].lstrip("/")


MAX_OBJECTS = 1_000_000
"""Most objects of a source that is listed as a whole (seeds, suites, inspections). Logs are listed a page at a time."""

_DAY = re.compile(r"(?<!\d)(\d{4})[-/](\d{2})[-/](\d{2})(?!\d)")
_SECRET = re.compile(r"signature|credential|token|password|secret|accesskey|access_key|api_?key|^sig$|^key$", re.IGNORECASE)
_KEYED_DAY = re.compile(r"(?:^|/)(?:dt|date|day|ds)=(\d{4})-(\d{2})-(\d{2})(?!\d)")


def _without_credentials(uri: str) -> str:
    if not is_local(uri):
        place = urlsplit(uri)
        named = {word.partition("=")[0] for word in re.split("[&;]", place.query)}
        if ":" in place.netloc.rpartition("@")[0] or any(map(_SECRET.search, named)):
            # an error type of its own, so that no message shows the value
            raise PydanticCustomError(
                "credentials",
                "the uri carries credentials, and uris stand in tables and manifests; "
                "give them in the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...)",
            )
    return uri


Uri = Annotated[str, AfterValidator(_without_credentials), LocalPath("uri")]
"""A uri in a recipe; credentials in it are refused."""


class SourceSettings(BaseModel):
    """One source of logs, feedback or examples, read in place."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    uri: Uri = Field(
        min_length=1, description="File, directory, glob, file:// or any fsspec URL such as s3://, without credentials"
    )
    format: str = Field("auto", description="Name of a log format; auto looks at the first records of each file")
    fields: FieldMapping | None = Field(
        None,
        description="Where records of no known format keep their request, answer and so "
        "on, as paths. Left out: only known formats are read",
    )
    workloads: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict, description="Workload names in the records, each with the recipe's workload that it means"
    )

    @property
    def read_as(self) -> str:
        """The settings that decide how objects are read, as JSON. After a change the source's objects are read again."""
        fields = {"fields": self.fields.given} if self.fields else {}
        return json.dumps({"format": self.format, "workloads": self.workloads, **fields}, sort_keys=True)

    @field_validator("format")
    @classmethod
    def _known(cls, value: str) -> str:
        from resources.records import FORMATS

        if value != "auto" and value not in FORMATS:
            raise ValueError(f"unknown log format {value!r}; give auto or one of {', '.join(FORMATS)}")
        return value

    @model_validator(mode="after")
    def _read_one_way(self):
        if self.fields and self.format != "auto":
            raise ValueError(
                f"fields and format {self.format} are both given; fields reads records of no known format, so "
                "leave one of them out"
            )
        return self


def workloads_of(workload: str, sources: Mapping[str, SourceSettings]) -> set[str]:
    return {workload, *(name for source in sources.values() for name in source.workloads.values())}


class ObjectVersion(Protocol):
    """What is needed to read an object."""

    @property
    def uri(self) -> str: ...
    @property
    def etag(self) -> str: ...
    @property
    def bytes(self) -> int: ...


def objects_after(name: str, source: SourceSettings, after: str = "") -> Iterator[LogObject]:
    """The objects of a source in uri order, after the uri `after`, lazily. Raises SourceError where they cannot be listed."""
    try:
        path = local_path(source.uri)
        if path is not None:
            yield from local_objects(name, path, after)
        else:
            yield from remote_objects(name, remote_uri(source.uri), after)
    except (ImportError, ValueError) as error:
        raise SourceError(f"source {name}: {source.uri.split('://')[0]}:// cannot be listed here: {error}") from error
    except OSError as error:
        raise SourceError(f"source {name}: {source.uri} cannot be listed: {error}") from error


def list_objects(name: str, source: SourceSettings, limit: int = MAX_OBJECTS) -> list[LogObject]:
    """All objects of one source, sorted by uri: for sources known to be small. Raises SourceError if the uri has no objects,
    has more than `limit`, or cannot be listed."""
    objects = list(islice(objects_after(name, source), limit + 1))
    if not objects:
        raise nothing_under(name, source)
    if len(objects) > limit:
        raise SourceError(f"source {name}: more than {limit} objects under {source.uri}; give a narrower uri")
    return objects


def nothing_under(name: str, source: SourceSettings) -> SourceError:
    path = local_path(source.uri)
    if path is not None and not glob.has_magic(path) and not Path(path).exists():
        return SourceError(f"source {name}: there is no file or directory {path}")
    return SourceError(f"source {name}: no log objects under {source.uri}; give a uri that holds at least one file")


def content_digest(name: str, uri: str) -> str:
    """sha256 over the bytes of every object under a uri, for small external inputs of an artefact's version. Raises SourceError
    where there is nothing under it."""
    digest = hashlib.sha256()
    for item in list_objects(name, SourceSettings(uri=uri)):
        with open_object(item) as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def open_object(item: ObjectVersion) -> Any:
    """A binary file of a listed object; on S3, of exactly the content that was listed."""
    if item.uri.startswith(s3.SCHEMES):
        return s3.open_stream(item.uri, item.etag, item.bytes)
    return Path(item.uri).open("rb") if is_local(item.uri) else open_remote(item.uri)


def days_in(uri: str) -> list[date]:
    """The day in an object's key: dt=YYYY-MM-DD, else the last YYYY-MM-DD or YYYY/MM/DD; else none."""
    for pattern in (_KEYED_DAY, _DAY):
        for parts in reversed(pattern.findall(uri)):
            try:
                return [date(*map(int, parts))]
            except ValueError:
                continue
    return []
