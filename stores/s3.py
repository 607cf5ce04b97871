"""Reads S3 and compatible storage: lists keys in order, and reads an object as it was when it was listed (If-Match): one that
changed is an error, not a mixture. Endpoint, region, keys and profile come from the usual AWS settings; without keys, requests
are unsigned. None of this is stored or logged. Errors are OSErrors of one sentence with the remedy."""

import asyncio
import concurrent.futures
import io
import os
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from model_ops.jobs import CheckFailed

SCHEMES = ("s3://", "s3a://")
PAGE_KEYS = 1000
"""Most keys in one S3 response."""
CONNECTIONS = 32
CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 30, 3
"""A request without an answer for READ_SECONDS is repeated, up to ATTEMPTS times, with growing pauses. botocore retries until a
response begins; a response that breaks off is retried here."""
RANGE_BYTES = 8 << 20
"""Larger objects are read in ranges of this size, one range ahead."""


class S3Error(CheckFailed, OSError):
    """S3 refused or failed a request."""


class UnreachableError(S3Error):
    """The endpoint does not answer: further requests are likely to fail too."""


class PreconditionError(S3Error):
    """The object is not as the request expects it."""


class GoneError(S3Error, FileNotFoundError):
    """There is no such object, or no more."""


class BrokenOffError(Exception):
    """A response ended before its last byte."""


class ObjectEntry(NamedTuple):
    """One key of a bucket."""

    key: str
    bytes: int
    etag: str
    modified: datetime


def parts(uri: str) -> tuple[str, str]:
    """Bucket and key of an s3:// uri; the key is taken literally."""
    bucket, _, key = uri.split("://", 1)[1].partition("/")
    return bucket, key


def objects(bucket: str, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
    """The object at `prefix`, if any, and those under `prefix/`, in key order after `after`. One page of keys is in memory."""
    if not bucket:
        raise S3Error("it names no bucket; s3://BUCKET/PREFIX is expected")
    if prefix and not prefix.endswith("/"):
        first = _answer(bucket, "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
        yield from (item for item in _keys(first) if item.key == prefix and item.key > after)
        prefix += "/"
    place: dict[str, Any] = {"StartAfter": after} if after else {}
    while True:
        page = _answer(bucket, "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=PAGE_KEYS, **place)
        yield from (item for item in _keys(page) if item.key > after)
        if not page.get("IsTruncated"):
            return
        place = {"ContinuationToken": page["NextContinuationToken"]}


def start_fetch(uri: str, etag: str) -> concurrent.futures.Future[bytes]:
    """Starts to fetch a listed object whole. Its result() raises S3Error."""
    filesystem = _filesystem()
    return asyncio.run_coroutine_threadsafe(_content(filesystem, uri, etag, None), filesystem.loop)


def open_stream(uri: str, etag: str, size: int) -> io.RawIOBase:
    """A listed object as a binary file, read from beginning to end. Reading raises S3Error."""
    return _Ranges(uri, etag, size)


class _Ranges(io.RawIOBase):
    """An object read in ranges, one range ahead."""

    def __init__(self, uri: str, etag: str, size: int):
        self.uri, self.etag, self.size = uri, etag, size
        self._data, self._asked = memoryview(b""), 0
        self._coming = self._next()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not len(self._data) and self._coming is not None:
            content = self._coming.result()
            self._coming = self._next()
            self._data = memoryview(content)
        taken = min(len(buffer), len(self._data))
        buffer[:taken] = self._data[:taken]
        self._data = self._data[taken:]
        return taken

    def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
        super().close()

    def _next(self) -> concurrent.futures.Future[bytes] | None:
        if self._asked >= self.size:
            return None
        filesystem = _filesystem()
        first, self._asked = self._asked, min(self._asked + RANGE_BYTES, self.size)
        span = f"bytes={first}-{self._asked - 1}"
        return asyncio.run_coroutine_threadsafe(_content(filesystem, self.uri, self.etag, span), filesystem.loop)


async def _content(filesystem: Any, uri: str, etag: str, span: str | None) -> bytes:
    bucket, key = parts(uri)
    wanted = {"Range": span} if span else {}

    async def ask() -> bytes:
        answer = await filesystem._call_s3("get_object", Bucket=bucket, Key=key, IfMatch=f'"{etag}"', **wanted)
        try:
            async with answer["Body"] as body:
                return await body.read()
        except _passing() as error:
            raise BrokenOffError(_kind(error)) from error

    return await tried(ask, uri)


async def tried(ask: Callable[[], Awaitable[Any]], uri: str, to: str = "read") -> Any:
    """An answer of S3; the request is repeated if the body breaks off. to: read, write or delete. Raises S3Error."""
    for attempt in range(ATTEMPTS):
        try:
            return await ask()
        except BrokenOffError as error:
            if attempt == ATTEMPTS - 1:
                raise UnreachableError(f"{uri}: {_endpoint()} breaks off ({error})") from None
            await asyncio.sleep(0.2 * 4**attempt)
        except _passing() as error:
            raise UnreachableError(f"{uri}: {_endpoint()} does not answer ({_kind(error)})") from None
        except Exception as error:
            raise _in_words(error, uri, to) from None
    raise AssertionError("unreachable: the last attempt returns or raises")


def ask_store(ask: Callable[[Any], Awaitable[Any]], uri: str, to: str = "read") -> Any:
    """The answer to one request. ask: gets the s3fs filesystem. to: read, write or delete, for errors. Raises S3Error."""
    return together(lambda filesystem: tried(lambda: ask(filesystem), uri, to))


def together(work: Callable[[Any], Awaitable[Any]]) -> Any:
    """Runs requests on fsspec's own loop; several may be in flight. work: gets the s3fs filesystem."""
    from fsspec.asyn import sync

    filesystem = _filesystem()
    return sync(filesystem.loop, work, filesystem)


def _answer(bucket: str, operation: str, **words: Any) -> dict[str, Any]:
    return ask_store(lambda filesystem: filesystem._call_s3(operation, **words), f"s3://{bucket}/{words['Prefix']}")


def _keys(page: dict[str, Any]) -> Iterator[ObjectEntry]:
    for entry in page.get("Contents", []):
        if not entry["Key"].endswith("/"):  # a folder placeholder, as consoles create it
            yield ObjectEntry(entry["Key"], entry["Size"], entry["ETag"].strip('"'), entry["LastModified"])


def _filesystem() -> Any:
    settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return _connected(frozenset(settings.items()), os.getpid())


@cache
def _connected(environment: frozenset[tuple[str, str]], process: int) -> Any:
    import botocore.session
    import s3fs

    given = dict(environment)
    endpoint = urlsplit(given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL") or "http://aws")
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
        raise S3Error("AWS_ENDPOINT_URL is no URL such as https://storage.example.com:9000")
    config: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "max_pool_connections": CONNECTIONS,
    }
    if not {"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"} & given.keys():
        config["retries"] = {"mode": "standard", "total_max_attempts": ATTEMPTS}
    unsigned = {} if _has_keys(botocore.session) else {"anon": True}
    filesystem = s3fs.S3FileSystem(config_kwargs=config, use_listings_cache=False, skip_instance_cache=True, **unsigned)
    filesystem.retries = 1  # botocore retries itself: more retries would multiply the wait for a silent server
    return filesystem


def _has_keys(session: Any) -> bool:
    from botocore.exceptions import BotoCoreError

    try:
        return session.Session().get_credentials() is not None
    except BotoCoreError as error:
        raise S3Error(f"the AWS settings cannot be used ({_kind(error)}): check AWS_PROFILE and ~/.aws") from None


def _passing() -> tuple[type[Exception], ...]:
    import aiohttp
    from botocore.exceptions import ConnectionError as NoConnection
    from botocore.exceptions import HTTPClientError

    return (
        HTTPClientError,
        NoConnection,
        aiohttp.ClientError,
        asyncio.TimeoutError,
        asyncio.IncompleteReadError,
        ConnectionError,
        TimeoutError,
    )


def _in_words(error: Exception, uri: str, to: str) -> S3Error:
    """S3's error as a sentence. S3's own text is left out, because it may quote an access key or a signed request."""
    code = code_of(error)
    bucket = parts(uri)[0]
    if isinstance(error, S3Error):
        return error
    if code in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409") and to == "write":
        return PreconditionError(f"{uri}: another machine changed the object")
    if code in ("PreconditionFailed", "412"):
        return S3Error(f"{uri}: the object changed after it was listed; the next run reads it as it is then")
    if code in ("NoSuchBucket",):
        return S3Error(f"there is no bucket {bucket} at {_endpoint()}; check the uri, AWS_ENDPOINT_URL and AWS_REGION")
    if isinstance(error, FileNotFoundError):
        return GoneError(f"{uri}: the object no longer exists; the next run lists the source again")
    if isinstance(error, PermissionError):
        return S3Error(
            f"{uri}: access denied ({code}); check AWS_ACCESS_KEY_ID and its secret, or AWS_PROFILE, and that they "
            f"may list bucket {bucket} and {to} its objects"
        )
    if code in ("SlowDown", "ServiceUnavailable", "InternalError", "500", "502", "503", "504", "RequestTimeout"):
        return UnreachableError(f"{uri}: {_endpoint()} cannot serve it now ({code})")
    if type(error).__module__.startswith("botocore") and not code:
        return S3Error(f"{uri}: the AWS settings cannot be used ({_kind(error)}); check the uri and the AWS_ variables")
    return S3Error(f"{uri}: {_endpoint()} refused ({code or _kind(error)})")


def code_of(error: BaseException) -> str:
    """The error code of S3's response, which s3fs keeps as the cause of its own error."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def _kind(error: BaseException) -> str:
    return type(error).__name__


def _endpoint() -> str:
    """The server's name, without path or credentials of the endpoint url."""
    url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    host = urlsplit(url).hostname
    return f"the endpoint {host}" if host else "S3"
