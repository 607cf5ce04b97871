"""The mirror of a lake in a bucket: pulls what others wrote, fetches large files when they are needed, publishes what it makes.
The bucket is what counts. A file that was written here and not published yet is never overwritten by a pull. What a machine
keeps for itself stays out of the bucket: Dagster's history, caches, recipes, unfinished artefacts, locks.

    mirror.pull()                              # manifests, pointers, endpoints, reports: small files; removes what is gone
    mirror.fetch(root / "models/tutor/sft_model/1a2b...")         # all of it, before it is read
    mirror.publish(root / "endpoints/tutor.json")                 # one file; raises Conflict if somebody was faster
    mirror.push()                              # what else was written here: answers, rewritten datasets
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from stores.in_use import hold, holding
from stores.lake_error import LakeError
from stores.mirror.bucket import Conflict, try_conditions
from stores.mirror.known import Object
from stores.mirror.layout import (
    ANSWERS,
    HOME,
    MANIFEST,
    MANIFEST_ALONE,
    PUSHED,
    SMALL_BYTES,
    droppable,
    files_in,
    is_shared,
    make_room,
    manifest_of,
    publish_order,
    version_of,
    versions_of,
)
from stores.mirror.leases import LeaseHeld, exclusive, require_held, shared
from stores.mirror.pulling import MirrorReader
from stores.s3 import GoneError, ObjectEntry

PATIENCE = "60s"


def storage_options() -> dict[str, str]:
    """delta-rs's settings for a bucket, from the usual AWS settings (stores/s3.py says which). Not stored."""
    import botocore.session

    session = botocore.session.Session()
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
    options = {"AWS_REGION": region, "timeout": PATIENCE, "aws_conditional_put": "etag"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(urlsplit(endpoint).scheme == "http").lower()
    credentials = session.get_credentials()
    if credentials is None:
        return {**options, "AWS_SKIP_SIGNATURE": "true"}
    keys = credentials.get_frozen_credentials()
    options |= {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    return {**options, "AWS_SESSION_TOKEN": keys.token} if keys.token else options


def opened_there(uri: str, options: dict[str, str]) -> DeltaTable | None:
    """The table in the bucket at its newest version, or None if nothing was ever committed to it."""
    try:
        return DeltaTable(uri, storage_options=options)
    except (TableNotFoundError, FileNotFoundError):
        return None


@contextmanager
def committing(uri: str, options: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Settings of one commit. Raises LakeError if another machine changed the same rows meanwhile."""
    process, number = _process(os.getpid()), time.time_ns()
    try:
        yield {
            "storage_options": options,
            "commit_properties": CommitProperties(app_transactions=[Transaction(process, number)]),
        }
    except (DeltaError, OSError) as error:
        table = opened_there(uri, options)
        if table is not None and table.transaction_version(process) == number:
            return
        if isinstance(error, CommitFailedError) or "already exists" in str(error):
            raise LakeError(
                f"another machine changed the same rows of {uri} meanwhile: nothing of this change was kept; run it again"
            ) from error
        raise LakeError(
            f"the store refused or did not finish a commit to {uri} ({type(error).__name__}): check that the keys "
            "in use may read and write there, and run it again"
        ) from error


@cache
def _process(pid: int) -> str:
    return f"millrace-{uuid.uuid4().hex}"


TRIED = "conditional_writes"
"""A file in HOME: the store was found to have them."""


class Mirror(MirrorReader):
    """The mirror at `root` of the lake in `bucket`."""

    @property
    def place(self) -> str:
        return self.bucket.url

    def may_write(self) -> None:
        """To be called before a write. Raises LakeError if this process has lost a lease of the lake, or if the store has no
        conditional writes, which is tried once."""
        require_held(self.bucket)
        tried = self.root / HOME / TRIED
        if not tried.exists():
            try_conditions(self.bucket)
            tried.touch()

    def require_whole(self) -> None:
        """Raises LakeError if a version that the bucket has finished is not here as it is there."""
        known = self.known.of()
        for item in self.bucket.objects():
            is_manifest = item.key == manifest_of(version_of(item.key) or "")
            if is_manifest and not _is_there(self.root / item.key, known.get(item.key), item):
                raise LakeError(
                    f"{item.key} of {self.place} cannot be brought to this machine, so its rows would be missed: "
                    f"remove {self.root / item.key} and its folder, and run the command again"
                )

    def at_work(self, wait: Callable[[str], None]) -> AbstractContextManager[None]:
        """Holds the lease of a run; waits while another machine holds the lake alone."""
        self.may_write()
        return shared(self.bucket, "work", wait)

    def alone(self) -> AbstractContextManager[None]:
        """Holds the lake alone. Raises LeaseHeld while a run of any machine is at work."""
        self.may_write()
        return exclusive(self.bucket, "work")

    def ingesting(self, wait: Callable[[str], None]) -> AbstractContextManager[None]:
        """Holds the lease of an ingest; waits while another machine ingests."""
        self.may_write()
        return exclusive(self.bucket, "ingest", wait)

    @contextmanager
    def committing(self, table: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Where a table is committed to, and with which settings of delta-rs. Raises LakeError if another machine changed the
        same rows meanwhile."""
        self.may_write()
        uri = self.bucket.uri(self._name(table))
        with committing(uri, storage_options()) as settings:
            yield uri, settings

    def table(self, table: Path) -> DeltaTable:
        """The table in the bucket, to be worked on. Raises TableNotFoundError."""
        return DeltaTable(self.bucket.uri(self._name(table)), storage_options=storage_options())

    def table_files(self, table: Path) -> dict[str, ObjectEntry]:
        """Every object of a table, by its path in it."""
        home = self._name(table)
        return {item.key.removeprefix(f"{home}/"): item for item in self.bucket.objects(home)}

    def remove_table_files(self, table: Path, paths: Iterable[str]) -> None:
        self.may_write()
        home = self._name(table)
        self.bucket.delete(f"{home}/{path}" for path in paths)

    def fetch(self, directory: Path, wanted: Callable[[Path, int], bool] | None = None) -> None:
        """Fetches the files under a folder that are not here yet. wanted: which of them, by path and bytes."""
        self.fetch_files(
            [
                self.root / path
                for path, item in self.known.of(f"{self._name(directory)}/").items()
                if wanted is None or wanted(self.root / path, item.bytes)
            ]
        )

    def fetch_files(self, paths: Iterable[Path]) -> None:
        """Fetches those of these files that are not here yet, and holds their tables and versions, so that no other process
        drops them while this one lives. Raises LakeError if another machine removed one."""
        names = [self._name(path) for path in paths]
        for unit in {unit for name in names if (unit := droppable(name)) is not None}:
            hold(self.root / unit)
        if any(not (self.root / name).exists() for name in names):
            with self._alone():
                missing = [name for name in names if not (self.root / name).exists()]
                known = self.known.of()
                make_room(
                    self.root,
                    known.values(),
                    self.known,
                    sum(known[name].bytes for name in missing if name in known),
                    self.place,
                )
                try:
                    self._download(missing)
                except GoneError as error:
                    raise LakeError(
                        f"another machine removed files of {self.place} meanwhile: run the command again"
                    ) from error
        self.known.used(names)

    def publish(self, path: Path) -> None:
        """Writes one small file to the bucket. Raises Conflict if the object is not the one that this machine saw last."""
        self.may_write()
        name, status, content = self._name(path), path.stat(), path.read_bytes()
        known = self.known.get(name)
        etag = self.bucket.put(name, content, known.etag if known is not None else None)
        self.known.note(name, etag, len(content), status)

    def publish_version(self, directory: Path, wait: Callable[[str], None]) -> None:
        """Uploads a finished artefact, its manifest last. What an interrupted upload has sent is not sent again. Raises
        Conflict if another machine finished the same version. `wait` is called if one is uploading it now."""
        name = self._name(directory)
        manifest = self.known.get(manifest_of(name))
        if manifest is not None and manifest.is_unchanged(directory / MANIFEST):
            return
        self.may_write()
        with holding(directory), exclusive(self.bucket, f"upload-{directory.name}", wait):
            there = {item.key: item for item in self.bucket.objects(name)}
            if manifest_of(name) in there:
                raise Conflict(name)
            known = self.known.of(f"{name}/")
            for path in files_in(directory):
                each = self._name(path)
                if path != directory / MANIFEST and not _is_there(path, known.get(each), there.get(each)):
                    self._upload(path)
            self._require_files(directory)
            self.publish(directory / MANIFEST)

    def _require_files(self, directory: Path) -> None:
        name = self._name(directory)
        there = {item.key: item.bytes for item in self.bucket.objects(name)}
        here = {self._name(path): path.stat().st_size for path in files_in(directory) if path != directory / MANIFEST}
        missing = [each for each, size in here.items() if there.get(each) != size]
        if not (directory / MANIFEST_ALONE).exists():
            named = json.loads((directory / MANIFEST).read_bytes())["files"]
            missing += [f"{name}/{file['path']}" for file in named if f"{name}/{file['path']}" not in there]
        if missing:
            raise LakeError(
                f"{missing[0]} is neither in {self.place} nor whole on this machine, so its version is not "
                f"published: remove {directory}, and run the recipe again, which makes it again"
            )

    def unpublished(self) -> list[Path]:
        known = self.known.of()
        finished = versions_of(self._name(path) for path in files_in(self.root, MANIFEST))
        return [self.root / version for version in sorted(finished) if manifest_of(version) not in known]

    def own_answers(self, path: Path) -> list[bytes]:
        """The lines of a file of paid answers that were not published."""
        return self._answers.own(self._name(path), path)

    def drop_answers(self, path: Path, lines: Collection[bytes]) -> None:
        """Removes lines from a file of paid answers on this machine."""
        self._answers.without(path, lines)

    def push(self) -> None:
        """Publishes everything else that was written here. Raises Conflict if somebody else wrote the same file: the other's
        counts, and replaces the file here."""
        for version in self.unpublished():  # another machine may have finished the version since
            try:
                self.publish_version(version, lambda holder: None)
            except Conflict:
                self.pull_version(version)
        known, changed = self.known.of(), []
        for folder in PUSHED:
            for path in sorted(files_in(self.root / folder), key=publish_order):
                name = self._name(path)
                if not is_shared(name) or (name in known and known[name].is_unchanged(path)) or self._is_in_draft(name):
                    continue
                try:
                    self._push_file(path, folder)
                except Conflict:
                    changed.append(name)
                    path.unlink()
                    self._bring([item for item in self.bucket.objects(name) if item.key == name], {})
        if changed:
            raise Conflict(", ".join(changed))

    def _push_file(self, path: Path, folder: str) -> None:
        if folder == ANSWERS:
            self.may_write()
            self._answers.push(self._name(path), path)
        elif path.stat().st_size <= SMALL_BYTES:
            self.publish(path)
        else:
            known = self.known.get(self._name(path))
            if self.bucket.etag(self._name(path)) != (known.etag if known is not None else None):
                raise Conflict(self._name(path))
            self._upload(path)

    def publish_catalog(self, catalog: Path) -> None:
        """Uploads the catalog, for DuckDB elsewhere."""
        known = self.known.get(self._name(catalog))
        if catalog.exists() and not (known is not None and known.is_unchanged(catalog)):
            self._upload(catalog)

    def remove(self, path: Path) -> None:
        """Removes a file or a folder from the bucket; what names the others goes first. The caller removes it here."""
        self.may_write()
        name = self._name(path)
        names = [item.key for item in self.bucket.objects(name)]
        for is_manifest in (True, False):
            self.bucket.delete(each for each in names if each.endswith(f"/{MANIFEST}") == is_manifest)
        self.known.forget(names)

    def remove_unfinished(self, keep_s: float) -> None:
        """Removes versions from the bucket that were uploaded in part, `keep_s` seconds or longer ago. A machine that has the
        whole version uploads it again."""
        self.may_write()
        listed = [item for item in self.bucket.objects() if version_of(item.key) is not None]
        finished = {version_of(item.key) for item in listed if item.key.endswith(f"/{MANIFEST}")}
        newest: dict[str, datetime] = {}
        for item in listed:
            version = version_of(item.key)
            if version is not None and version not in finished:
                newest[version] = max(item.modified, newest.get(version, item.modified))
        before = datetime.now(UTC) - timedelta(seconds=keep_s)
        for version in (version for version, modified in newest.items() if modified < before):
            with suppress(LeaseHeld), exclusive(self.bucket, f"upload-{PurePosixPath(version).name}"):
                names = [item.key for item in self.bucket.objects(version)]
                if manifest_of(version) not in names:
                    self.bucket.delete(names)
                    self.known.forget(names)

    def _upload(self, path: Path) -> None:
        self.may_write()
        name, status = self._name(path), path.stat()
        self.known.note(name, self.bucket.upload([(name, path)])[name], status.st_size, status)

    def _is_in_draft(self, name: str) -> bool:
        version = version_of(name)
        return version is not None and not (self.root / version / MANIFEST).exists()


def _is_there(path: Path, known: Object | None, item: ObjectEntry | None) -> bool:
    return (
        known is not None
        and item is not None
        and known.is_unchanged(path)
        and (item.etag, item.bytes) == (known.etag, known.size)
    )
