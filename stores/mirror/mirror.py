"""The mirror of a lake in a bucket: pulls what others wrote, fetches large files when they are needed, publishes what it makes.

    mirror = Mirror(root, Bucket("s3://company/lakes/tutor"))
    mirror.pull()                              # manifests, pointers, endpoints, reports: small files; removes what is gone
    mirror.fetch(root / "models/tutor/sft_model/1a2b...")         # all of it, before it is read
    mirror.publish_version(directory)          # an artefact: its manifest last
    mirror.publish(root / "endpoints/tutor.json")                 # one file; raises Changed if somebody was faster
    mirror.push()                              # what else was written here: answers, rewritten datasets
    mirror.remove(directory)                   # from the bucket too

The bucket is what counts. A file that was written here and not published yet is never overwritten by a pull. Large files are
fetched whole; space.py keeps the mirror within its budget. What a machine keeps for itself stays out of the bucket: Dagster's
history, caches, recipes, sweeps, unfinished artefacts, locks.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from deltalake import DeltaTable

from model_ops.atomic_files import replaced
from stores.in_use import hold
from stores.mirror.answer_lines import join
from stores.mirror.bucket import Bucket, Changed
from stores.mirror.delta import committing, storage_options
from stores.mirror.known import Known, Object
from stores.mirror.leases import exclusive, shared
from stores.mirror.space import SMALL_BYTES, droppable, make_room
from stores.s3 import Listed

HOME = ".mirror"
MANIFEST = "manifest.json"
ARTEFACTS = {"datasets": 4, "models": 4, "releases": 3}
"""Folders of artefacts, and the number of parts of a version's path."""
SHARED = (*ARTEFACTS, "endpoints", "answers", "counts", ".erasing")
LOG = "_delta_log"


class Mirror:
    """The mirror at `root` of the lake in `bucket`."""

    def __init__(self, root: Path, bucket: Bucket):
        self.root, self.bucket = root, bucket
        self.known = Known(root / HOME / "known.sqlite")

    @property
    def place(self) -> str:
        """The lake's name in messages."""
        return self.bucket.url

    def pull(self) -> None:
        """Brings small files and the tables' logs up to date, and removes what was removed from the bucket."""
        with self._alone():
            # known first: what another process publishes after this line is in neither, or in the list alone
            known = {path: item for path, item in self.known.of().items() if _is_shared(path) or _is_table(path)}
            listed = {item.key: item for item in self.bucket.objects() if _is_shared(item.key) or _is_table(item.key)}
            self._drop_removed([known[path] for path in known if path not in listed])
            drafts = {version for version in _versions(listed) if self._is_draft(version)}
            finished = {version for version in _versions(listed) if f"{version}/{MANIFEST}" in listed} - drafts
            self._bring([item for item in listed.values() if _version(item.key) in {*finished, None}], known)

    def pull_file(self, path: Path) -> None:
        """Brings one small file up to date; removes it if it was removed from the bucket."""
        name = self._name(path)
        known = self.known.get(name)
        if (known is None and path.exists()) or (known is not None and path.exists() and not known.is_unchanged(path)):
            return  # written here, and not published yet
        unless = known.etag if known is not None and path.exists() else ""
        found = self.bucket.get(name, unless)
        if found is not None:
            with replaced(path) as temporary:
                temporary.write_bytes(found[0])
            self.known.note(name, found[1], len(found[0]), path.stat())
        elif known is not None and self.bucket.modified(name) is None:
            path.unlink(missing_ok=True)
            self.known.forget([name])

    def pull_folder(self, folder: Path) -> None:
        """Brings the small files of one folder up to date."""
        name = self._name(folder)
        with self._alone():
            known = self.known.of(f"{name}/")
            listed = {item.key: item for item in self.bucket.objects(name) if _is_shared(item.key)}
            self._drop_removed([known[path] for path in known if path not in listed])
            self._bring(listed.values(), known)

    def pull_log(self, table: Path) -> None:
        """Brings the commit log of a table up to date with new commits."""
        log = f"{self._name(table)}/{LOG}/"
        commits = [path for path in self.known.of(log) if PurePosixPath(path).name[:1].isdigit()]
        new = {item.key: item for item in self.bucket.objects(log, after=max(commits, default=""))}
        known = self.known.of(log)
        wanted = [key for key, item in new.items() if self._is_outdated(item, known.get(key))]
        if wanted:
            with self._alone():
                # a commit is complete only with those before it, and a checkpoint's name before the checkpoint
                for group in ([key for key in wanted if not key.endswith("_last_checkpoint")],
                              [key for key in wanted if key.endswith("_last_checkpoint")]):
                    self._download(sorted(group))

    def pull_version(self, directory: Path) -> bool:
        """Takes over a version that another machine has finished, instead of an unfinished one here. False if there is none."""
        name = self._name(directory)
        listed = {item.key: item for item in self.bucket.objects(name)}
        if f"{name}/{MANIFEST}" not in listed:
            return False
        with self._alone():
            for path in _files(directory):
                path.unlink()
            self._bring(listed.values(), {})
        return True

    def at_work(self, wait: Callable[[str], None]) -> AbstractContextManager[None]:
        """Holds the lease of a run; waits while another machine holds the lake alone."""
        return shared(self.bucket, "work", wait)

    def alone(self) -> AbstractContextManager[None]:
        """Holds the lake alone. Raises Taken while a run of any machine is at work."""
        return exclusive(self.bucket, "work")

    def ingesting(self, wait: Callable[[str], None]) -> AbstractContextManager[None]:
        """Holds the lease of an ingest; waits while another machine ingests."""
        return exclusive(self.bucket, "ingest", wait)

    @contextmanager
    def committing(self, table: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Where a table is committed to, and with which settings of delta-rs. Raises LakeError if another machine changed the
        same rows meanwhile."""
        uri = self.bucket.uri(self._name(table))
        with committing(uri, storage_options()) as settings:
            yield uri, settings

    def table(self, table: Path) -> DeltaTable:
        """The table in the bucket, to be worked on. Raises TableNotFoundError."""
        return DeltaTable(self.bucket.uri(self._name(table)), storage_options=storage_options())

    def table_files(self, table: Path) -> dict[str, Listed]:
        """Every object of a table, by its path in it."""
        home = self._name(table)
        return {item.key.removeprefix(f"{home}/"): item for item in self.bucket.objects(home)}

    def remove_table_files(self, table: Path, paths: Iterable[str]) -> None:
        home = self._name(table)
        self.bucket.delete(f"{home}/{path}" for path in paths)

    def fetch(self, directory: Path) -> None:
        """Fetches the files under a folder that are not here yet."""
        self.fetch_files([self.root / path for path in self.known.of(f"{self._name(directory)}/")])

    def fetch_files(self, paths: Iterable[Path]) -> None:
        """Fetches those of these files that are not here yet, and holds their tables and versions, so that no other process
        drops them while this one lives."""
        names = [self._name(path) for path in paths]
        for unit in {unit for name in names if (unit := droppable(name)) is not None}:
            hold(self.root / unit)
        if any(not (self.root / name).exists() for name in names):
            with self._alone():
                missing = [name for name in names if not (self.root / name).exists()]
                known = self.known.of()
                make_room(self.root, known.values(), self.known, sum(known[name].bytes for name in missing if name in known),
                          self.place)
                self._download(missing)
        self.known.used(names)

    def publish(self, path: Path) -> None:
        """Writes one small file to the bucket. Raises Changed if the object is not the one that this machine saw last."""
        name, found, content = self._name(path), path.stat(), path.read_bytes()
        known = self.known.get(name)
        etag = self.bucket.put(name, content, known.etag if known is not None else None)
        self.known.note(name, etag, len(content), found)

    def publish_version(self, directory: Path, wait: Callable[[str], None]) -> None:
        """Uploads a finished artefact, its manifest last. What an interrupted upload has sent is not sent again.

        Raises Changed if another machine finished the same version. `wait` is called if one is uploading it now.
        """
        name = self._name(directory)
        known = self.known.of(f"{name}/")
        if f"{name}/{MANIFEST}" in known and known[f"{name}/{MANIFEST}"].is_unchanged(directory / MANIFEST):
            return
        with exclusive(self.bucket, f"upload-{directory.name}", wait):
            if self.bucket.modified(f"{name}/{MANIFEST}") is not None:
                raise Changed(name)
            for path in _files(directory):
                each = known.get(self._name(path))
                if path != directory / MANIFEST and not (each is not None and each.is_unchanged(path)):
                    self._upload(path)
            self.publish(directory / MANIFEST)

    def push(self) -> None:
        """Publishes everything else that was written here. Raises Changed if somebody else wrote the same file."""
        known = self.known.of()
        finished = {version for version in _versions(self._name(path) for path in _files(self.root, MANIFEST))
                    if f"{version}/{MANIFEST}" not in known}
        for version in sorted(finished):  # an upload that was stopped; another machine may have finished the version since
            try:
                self.publish_version(self.root / version, lambda holder: None)
            except Changed:
                self.pull_version(self.root / version)
        known = self.known.of()
        for folder in SHARED:
            for path in sorted(_files(self.root / folder), key=_order):
                name = self._name(path)
                if not _is_shared(name) or (name in known and known[name].is_unchanged(path)) or self._is_in_draft(name):
                    continue
                if folder == "answers":
                    self._push_answers(path)
                elif path.stat().st_size <= SMALL_BYTES:
                    self.publish(path)
                else:
                    self._upload(path)

    def publish_catalog(self, catalog: Path) -> None:
        """Uploads the catalog, for DuckDB elsewhere."""
        known = self.known.get(self._name(catalog))
        if catalog.exists() and not (known is not None and known.is_unchanged(catalog)):
            self._upload(catalog)

    def remove(self, path: Path) -> None:
        """Removes a file or a folder from the bucket; what names the others goes first. The caller removes it here."""
        name = self._name(path)
        names = [item.key for item in self.bucket.objects(name)]
        for is_manifest in (True, False):
            self.bucket.delete(each for each in names if each.endswith(f"/{MANIFEST}") == is_manifest)
        self.known.forget(names)

    def remove_unfinished(self, keep_s: float) -> None:
        """Removes versions from the bucket that were uploaded in part, `keep_s` seconds or longer ago."""
        listed = [item for item in self.bucket.objects() if _version(item.key) is not None]
        finished = {_version(item.key) for item in listed if item.key.endswith(f"/{MANIFEST}")}
        newest: dict[str, Listed] = {}
        for item in listed:
            version = _version(item.key)
            if version not in finished and (version not in newest or newest[version].modified < item.modified):
                newest[version] = item
        before = datetime.now(UTC) - timedelta(seconds=keep_s)
        old = {version for version, item in newest.items() if item.modified < before}
        self.bucket.delete(item.key for item in listed if _version(item.key) in old)

    def _bring(self, items: Collection[Listed], known: Mapping[str, Object]) -> None:
        """Downloads new and changed small files, and notes the large ones."""
        wanted = [item for item in items if _is_small(item) and self._is_outdated(item, known.get(item.key))]
        wanted.sort(key=lambda item: not item.key.endswith(MANIFEST))  # a folder without one would count as unfinished
        self._download([item.key for item in wanted])
        self.known.note_all((item.key, item.etag, item.bytes, None) for item in items
                            if not _is_small(item) and self._is_other(item, known.get(item.key)))

    def _is_outdated(self, item: Listed, known: Object | None) -> bool:
        """Whether an object has to be downloaded: it is new or changed, and the file here, if any, was not written since."""
        file = self.root / item.key
        if known is None:
            return not file.exists()
        if file.exists():
            return known.etag != item.etag and known.is_unchanged(file)
        return True

    def _is_other(self, item: Listed, known: Object | None) -> bool:
        """Whether a large object is another one than was known; its file, if unchanged, is dropped."""
        if known is not None and known.etag == item.etag:
            return False
        file = self.root / item.key
        if known is not None and known.is_unchanged(file):
            file.unlink()
        return not file.exists()

    def _drop_removed(self, gone: Iterable[Object]) -> None:
        """Removes files whose objects were removed, and folders that are empty then."""
        for item in gone:
            file = self.root / item.path
            if item.is_unchanged(file):
                file.unlink()
            if not file.exists():
                self.known.forget([item.path])
                with suppress(OSError):
                    for folder in list(file.parents)[: len(PurePosixPath(item.path).parts) - 1]:
                        folder.rmdir()

    def _download(self, names: Iterable[str]) -> None:
        """Each file is noted as soon as it is there: one that is not noted counts as written here."""
        self.bucket.download(((name, self.root / name) for name in names),
                             lambda name, etag, found: self.known.note(name, etag, found.st_size, found))

    def _upload(self, path: Path) -> None:
        name, found = self._name(path), path.stat()
        self.known.note(name, self.bucket.upload([(name, path)])[name], found.st_size, found)

    def _push_answers(self, path: Path) -> None:
        """Publishes paid answers together with those that other machines published meanwhile."""
        name = self._name(path)
        known = self.known.get(name)
        etag, base = (known.etag, known.size) if known is not None else (None, 0)
        while True:
            found, content = path.stat(), path.read_bytes()
            try:
                self.known.note(name, self.bucket.put(name, content, etag), len(content), found)
                return
            except Changed:
                others, etag = self.bucket.get(name) or (b"", None)
                base = join(path, base, others)

    def _is_draft(self, version: str) -> bool:
        place = self.root / version
        return place.is_dir() and not (place / MANIFEST).exists() and any(place.iterdir())

    def _is_in_draft(self, name: str) -> bool:
        version = _version(name)
        return version is not None and not (self.root / version / MANIFEST).exists()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process of a machine at a time changes its mirror."""
        with (self.root / HOME / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _files(directory: Path, pattern: str = "*") -> Iterator[Path]:
    """Files under a folder, without those whose name begins with a dot (unfinished writes) and folders that do."""
    for path in sorted(directory.rglob(pattern)) if directory.is_dir() else ():
        inside = path.relative_to(directory).parts
        if path.is_file() and not path.is_symlink() and not any(part.startswith(".") for part in inside):
            yield path


def _order(path: Path) -> int:
    """What names other files is published after them."""
    return {MANIFEST: 1, "current.json": 2}.get(path.name, 0)


def _is_shared(name: str) -> bool:
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") for part in parts[1:])
    return parts[0] in SHARED and len(parts) > 1 and not hidden and not name.endswith(".lock")


def _is_table(name: str) -> bool:
    return name.startswith("tables/")


def _is_small(item: Listed) -> bool:
    if _is_table(item.key):
        return f"/{LOG}/" in item.key
    if item.key.startswith("answers/"):
        return False
    return item.bytes <= SMALL_BYTES or PurePosixPath(item.key).name == MANIFEST


def _version(name: str) -> str | None:
    """The path of the artefact's version that a file is part of; None for other files, such as pointers."""
    parts = PurePosixPath(name).parts
    depth = ARTEFACTS.get(parts[0])
    return "/".join(parts[:depth]) if depth is not None and len(parts) > depth else None


def _versions(names: Iterable[str]) -> set[str]:
    return {version for name in names if (version := _version(name)) is not None}
