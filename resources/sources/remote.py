"""Filesystems that are neither local nor S3: any that fsspec supports, such as https://, gs:// or abfs://. Their errors are
often no OSErrors, and may quote a signed request: every error becomes an OSError that names only its kind.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from stores.s3 import CONNECT_SECONDS, READ_SECONDS

WEB = ("http://", "https://")


class RemoteError(OSError):
    """The filesystem failed; the message names no uri."""


def filesystem_of(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of a uri and the path in it. Raises ImportError or ValueError if there is none."""
    options: dict[str, Any] = {}
    if uri.startswith(WEB):
        import aiohttp

        options["client_kwargs"] = {"timeout": aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)}
    return fsspec.url_to_fs(uri, **options)


def info_of(filesystem: fsspec.AbstractFileSystem, path: str) -> dict[str, Any] | None:
    """Metadata of a file or folder; None where it does not exist. Raises RemoteError. fsspec reports an unreachable web server
    like a missing page; this function distinguishes them."""
    try:
        with in_words():
            return filesystem.info(path)
    except FileNotFoundError as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, FileNotFoundError) and getattr(cause, "status", None) not in (404, 410):
            raise RemoteError(_said(cause)) from None
        return None


def open_remote(uri: str) -> io.RawIOBase:
    """A binary file, read from beginning to end. Opening and reading raise OSError."""
    with in_words():
        filesystem, path = filesystem_of(uri)
        return _Read(filesystem.open(path, "rb"))


class _Read(io.RawIOBase):
    """A file whose errors are OSErrors."""

    def __init__(self, file: Any):
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with in_words():
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def in_words() -> Iterator[None]:
    """Turns a filesystem library's errors into RemoteError; FileNotFoundError stays."""
    try:
        yield
    except (FileNotFoundError, ImportError, RemoteError):
        raise
    except Exception as error:  # fsspec's libraries raise errors of any type
        raise RemoteError(_said(error)) from None


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    status = getattr(error, "status", None) or getattr(error, "code", None)
    return f"the server refused ({status})" if isinstance(status, int) else f"it cannot be had ({type(error).__name__})"
