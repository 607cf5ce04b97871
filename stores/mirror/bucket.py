"""The objects of a lake in a bucket, by paths relative to the lake: written only if they are as this machine last saw them.

etag = bucket.put("endpoints/tutor.json", b"...", was=None)      # None: there must be no such object yet
bucket.put("endpoints/tutor.json", b"...", was=etag)             # raises Conflict if somebody replaced it meanwhile"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from stores import s3
from stores.lake_error import LakeError

T = TypeVar("T")
SEVERAL = 8
"""Objects that are transferred at a time."""
PART_BYTES = 64 << 20
"""Size of the parts in which a larger file is uploaded."""


class Conflict(Exception):
    """Another machine created, replaced or removed the object since this machine read it."""


@dataclass(frozen=True)
class Bucket:
    """One lake's part of a bucket."""

    url: str
    """S3://BUCKET/PREFIX, without a slash at its end."""

    def uri(self, path: str) -> str:
        return f"{self.url}/{path}"

    def objects(self, under: str = "", after: str = "") -> Iterator[s3.ObjectEntry]:
        """The objects under a folder, in order of their path, after `after`. `key` is relative to the lake."""
        bucket, prefix = s3.parts(self.url)
        home = f"{prefix}/" if prefix else ""
        for item in s3.objects(bucket, f"{home}{under}".rstrip("/"), f"{home}{after}" if after else ""):
            if item.key.startswith(home):
                yield item._replace(key=item.key[len(home) :])

    def get(self, path: str, unless: str = "") -> tuple[bytes, str] | None:
        """Content and etag of an object; None if there is none, or if its etag is still `unless`."""

        async def ask(filesystem: Any) -> tuple[bytes, str] | None:
            conditions = {"IfNoneMatch": f'"{unless}"'} if unless else {}
            try:
                answer = await filesystem._call_s3("get_object", **self._named(path), **conditions)
            except FileNotFoundError:
                return None
            except Exception as error:
                if s3.code_of(error) in ("304", "NotModified"):
                    return None
                raise
            async with answer["Body"] as body:
                return await body.read(), _etag(answer)

        return s3.ask_store(ask, self.uri(path))

    def put(self, path: str, content: bytes, was: str | None) -> str:
        """Writes a small object if its etag is `was`; None: if there is none. Returns its etag. Raises Conflict. A write whose
        answer was lost is repeated and refused: the object has this content by then, which counts as written."""

        async def ask(filesystem: Any) -> str:
            condition = {"IfNoneMatch": "*"} if was is None else {"IfMatch": f'"{was}"'}
            answer = await filesystem._call_s3("put_object", **self._named(path), Body=content, **condition)
            return _etag(answer)

        try:
            return s3.ask_store(ask, self.uri(path), "write")
        except (s3.PreconditionError, s3.GoneError) as error:
            there = self.get(path)
            if there is None or there[0] != content:
                raise Conflict(path) from error
            return there[1]

    def upload(self, files: Iterable[tuple[str, Path]]) -> dict[str, str]:
        """Writes files, several at a time, whatever was there. Returns their etags by path."""

        async def send(filesystem: Any, path: str, file: Path) -> tuple[str, str]:
            await filesystem._put_file(str(file), "/".join(s3.parts(self.uri(path))), chunksize=PART_BYTES)
            answer = await filesystem._call_s3("head_object", **self._named(path))
            return path, _etag(answer)

        return dict(self._each(send, list(files), "write"))

    def download(self, files: Iterable[tuple[str, Path]], fetched: Callable[[str, str, os.stat_result], None]) -> None:
        """Fetches objects into files, several at a time; each replaces its file when it is complete, and is told to `fetched`
        at once: path, etag, status of the file. Raises S3Error, GoneError for an object that was removed."""

        async def fetch(filesystem: Any, path: str, file: Path) -> tuple[str, str]:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_name(f".{file.name}.{id(file):x}.fetched")
            try:
                answer = await filesystem._call_s3("get_object", **self._named(path))
                with temporary.open("wb") as target:
                    async with answer["Body"] as body:
                        while part := await body.read(1 << 20):
                            target.write(part)
                if temporary.stat().st_size != answer["ContentLength"]:
                    raise s3.BrokenOffError("IncompleteBody")
                status = temporary.stat()
                temporary.replace(file)
                fetched(path, _etag(answer), status)
            finally:
                temporary.unlink(missing_ok=True)
            return path, _etag(answer)

        self._each(fetch, list(files), "read")

    def delete(self, paths: Iterable[str]) -> None:
        """Removes objects; one that is gone already is no error."""

        async def remove(filesystem: Any, path: str, _: Path) -> tuple[str, str]:
            await filesystem._call_s3("delete_object", **self._named(path))
            return path, ""

        self._each(remove, [(path, Path()) for path in paths], "delete")

    def modified(self, path: str) -> datetime | None:
        """When an object was written, by the store's clock; None if there is none."""
        head = self._head(path)
        return head["LastModified"] if head is not None else None

    def etag(self, path: str) -> str | None:
        head = self._head(path)
        return _etag(head) if head is not None else None

    def _head(self, path: str) -> dict[str, Any] | None:
        async def ask(filesystem: Any) -> dict[str, Any] | None:
            try:
                return await filesystem._call_s3("head_object", **self._named(path))
            except FileNotFoundError:
                return None

        return s3.ask_store(ask, self.uri(path))

    def _named(self, path: str) -> dict[str, str]:
        bucket, key = s3.parts(self.uri(path))
        return {"Bucket": bucket, "Key": key}

    def _each(
        self, work: Callable[[Any, str, Path], Awaitable[tuple[str, str]]], files: list[tuple[str, Path]], to: str
    ) -> list[tuple[str, str]]:
        async def together(filesystem: Any) -> list[tuple[str, str]]:
            free = asyncio.Semaphore(SEVERAL)

            async def one(path: str, file: Path) -> tuple[str, str]:
                async with free:
                    return await s3.tried(lambda: work(filesystem, path, file), self.uri(path), to)

            running = [asyncio.ensure_future(one(path, file)) for path, file in files]
            try:
                return list(await asyncio.gather(*running))
            except BaseException:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                raise

        return s3.together(together) if files else []


def _etag(answer: dict[str, Any]) -> str:
    return answer["ETag"].strip('"')


PROBE = ".probe-"


def try_conditions(bucket: Bucket) -> None:
    """Raises LakeError if the store ignores conditions of writes, S3Error if it refuses to write or to delete."""
    path = f"{PROBE}{secrets.token_hex(8)}"
    etag = bucket.put(path, b"1", None)
    try:
        ignored = []
        for condition, was in (("If-None-Match", None), ("If-Match", "0" * 32)):
            with suppress(Conflict):
                bucket.put(path, condition.encode(), was)
                ignored.append(condition)
        if not ignored:
            etag = bucket.put(path, b"2", etag)
    except Conflict:
        ignored = ["If-Match"]
    finally:
        bucket.delete([path])
    if ignored:
        raise LakeError(
            f"the store of {bucket.url} has no conditional writes (it ignores {' and '.join(ignored)}), so two writers would "
            "lose rows: use AWS S3, MinIO, Ceph, Cloudflare R2 or another store with them, or a lake on a disk"
        )
