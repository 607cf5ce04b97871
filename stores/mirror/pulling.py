"""Takes into a mirror what other machines wrote to its bucket. A file that was written here and not published yet is never
overwritten, unless it is part of a version that the bucket has finished. Answers are joined."""

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from os import stat_result
from pathlib import Path, PurePosixPath

from model_ops.files import file_lock, is_at, lock, replacement
from stores.in_use import InUse, taken
from stores.mirror.bucket import Bucket, Conflict
from stores.mirror.known import MirrorIndex, Object
from stores.mirror.layout import (
    HOME,
    LOG,
    MANIFEST,
    is_answers,
    is_shared,
    is_small,
    is_table,
    manifest_of,
    version_of,
    versions_of,
)
from stores.s3 import ATTEMPTS, GoneError, ObjectEntry


class PaidAnswers:
    """The files of paid answers of one mirror."""

    def __init__(self, bucket: Bucket, known: MirrorIndex):
        self._bucket, self._known = bucket, known

    def take(self, name: str, path: Path) -> str | None:
        """Joins the object into the file; returns its etag, None if there is none."""
        there = self._bucket.get(name)
        others, etag = there if there is not None else (b"", None)
        with locked_log(path):
            mine, seen = path.read_bytes(), self._seen(name)
            content = joined(mine, seen, others)
            if not content.startswith(mine):
                with replacement(path) as temporary:
                    temporary.write_bytes(content)
            elif len(content) > len(mine):  # processes may have read the places of the lines before
                with path.open("ab") as file:
                    file.write(content[len(mine) :])
            status = path.stat()
        if etag is None:
            self._known.forget([name])
            return None
        if set(digests_of(content)) <= set(digests_of(others)):
            self._known.note(name, etag, len(others), status)
        else:
            self._known.note_grown(name, etag, len(others))
        self._known.note_lines(name, digests_of(others))
        return etag

    def push(self, name: str, path: Path) -> None:
        known = self._known.get(name)
        etag = known.etag if known is not None and known.is_here else self.take(name, path)
        while True:
            with locked_log(path):
                status, content = path.stat(), path.read_bytes()
            try:
                etag = self._bucket.put(name, content, etag)
            except Conflict:
                etag = self.take(name, path)
                continue
            self._known.note(name, etag, len(content), status)
            self._known.note_lines(name, digests_of(content))
            return

    def own(self, name: str, path: Path) -> list[bytes]:
        if (known := self._known.get(name)) is not None and known.is_unchanged(path):
            return []
        with locked_log(path):
            content = path.read_bytes()
        seen = self._seen(name)
        return [
            line
            for digest, line in zip(digests_of(content), content.splitlines(keepends=True), strict=True)
            if digest not in seen
        ]

    def without(self, path: Path, lines: Collection[bytes]) -> None:
        gone = set(lines)
        with locked_log(path):
            left = [line for line in path.read_bytes().splitlines(keepends=True) if line not in gone]
            with replacement(path) as temporary:
                temporary.write_bytes(b"".join(left))

    def drop(self, name: str, path: Path) -> None:
        """Removes the lines of an object that was removed; the file stays if it has others."""
        with suppress(FileNotFoundError), locked_log(path):
            left = joined(path.read_bytes(), self._seen(name), b"")
            if left:
                with replacement(path) as temporary:
                    temporary.write_bytes(left)
            else:
                path.unlink()
        self._known.forget([name])

    def _seen(self, name: str) -> set[bytes]:
        """Digests of the lines that the file here and the object had in common."""
        known = self._known.get(name)
        return self._known.lines_of(name) if known is not None and known.is_here else set()


def joined(mine: bytes, seen: set[bytes], others: bytes) -> bytes:
    """The lines of both, without those that one of both has erased. seen: digests of the lines that both had before."""
    if mine and not mine.endswith(b"\n"):
        mine += b"\n"  # a line that a killed process left
    theirs = dict(zip(digests_of(others), others.splitlines(keepends=True), strict=True))
    own = list(zip(digests_of(mine), mine.splitlines(keepends=True), strict=True))
    has = {digest for digest, _ in own}
    own_lines = [line for digest, line in own if digest in theirs or digest not in seen]
    return b"".join([*own_lines, *(line for digest, line in theirs.items() if digest not in has and digest not in seen)])


@contextmanager
def locked_log(path: Path) -> Iterator[None]:
    """Holds the kernel lock of the file, as its writers do. Raises FileNotFoundError."""
    while True:
        with path.open("rb") as file:
            lock(file)
            if is_at(file.fileno(), path):
                yield
                return


def digests_of(content: bytes) -> Iterator[bytes]:
    return (sha256(line).digest() for line in content.splitlines(keepends=True))


class MirrorReader:
    """Copies objects of `bucket` to the mirror at `root`."""

    def __init__(self, root: Path, bucket: Bucket):
        self.root, self.bucket = root, bucket
        self.known = MirrorIndex(root / HOME / "known.sqlite")
        self._answers = PaidAnswers(bucket, self.known)

    def pull(self, over_drafts: bool = False) -> None:
        """Brings small files and the tables' logs up to date, and removes what was removed from the bucket. A version that the
        bucket has finished replaces another one here, finished or not, unless a process works in that; over_drafts: also then.
        Whoever holds the lake alone needs every version."""
        for attempt in range(ATTEMPTS):
            try:
                return self._pull(over_drafts)
            except GoneError:  # an object was removed after it was listed
                if attempt == ATTEMPTS - 1:
                    raise

    def _pull(self, over_drafts: bool) -> None:
        with self._alone():
            # known first: what another process publishes after this line is in neither, or in the list alone
            known = {path: item for path, item in self.known.of().items() if is_shared(path) or is_table(path)}
            listed = {item.key: item for item in self.bucket.objects() if is_shared(item.key) or is_table(item.key)}
            self._drop_removed({path for path in known if path not in listed}, known)
            finished = {version for version in versions_of(listed) if manifest_of(version) in listed}
            brought = {version for version in finished if self._make_way(version, known, over_drafts)}
            self._bring([item for item in listed.values() if version_of(item.key) in {*brought, None}], known)

    def pull_file(self, path: Path) -> None:
        name = self._name(path)
        known = self.known.get(name)
        if (known is None and path.exists()) or (known is not None and path.exists() and not known.is_unchanged(path)):
            return  # written here, and not published yet
        unless = known.etag if known is not None and path.exists() else ""
        there = self.bucket.get(name, unless)
        if there is not None:
            with replacement(path) as temporary:
                temporary.write_bytes(there[0])
            self.known.note(name, there[1], len(there[0]), path.stat())
        elif known is not None and self.bucket.modified(name) is None:
            path.unlink(missing_ok=True)
            self.known.forget([name])

    def pull_folder(self, folder: Path) -> None:
        name = self._name(folder)
        with self._alone():
            known = self.known.of(f"{name}/")
            listed = {item.key: item for item in self.bucket.objects(name) if is_shared(item.key)}
            self._drop_removed({path for path in known if path not in listed}, known)
            self._bring(listed.values(), known)

    def pull_log(self, table: Path) -> None:
        """Brings the commit log of a table up to date with new commits."""
        log = f"{self._name(table)}/{LOG}/"
        commits = [path for path in self.known.of(log) if PurePosixPath(path).name[:1].isdigit()]
        known = self.known.of(log)
        wanted = self._outdated(self.bucket.objects(log, after=max(commits, default="")), known)
        if any(key.endswith("_last_checkpoint") for key in wanted):  # the checkpoint may be of a commit that is here already
            wanted = self._outdated(self.bucket.objects(log), known)
        if wanted:
            with self._alone():
                # a commit is complete only with those before it, and a checkpoint's name before the checkpoint
                for group in (
                    [key for key in wanted if not key.endswith("_last_checkpoint")],
                    [key for key in wanted if key.endswith("_last_checkpoint")],
                ):
                    self._download(sorted(group))

    def pull_version(self, directory: Path) -> bool:
        """Takes over a version that another machine has finished, instead of one here. False if there is none."""
        name = self._name(directory)
        listed = {item.key: item for item in self.bucket.objects(name)}
        if manifest_of(name) not in listed:
            return False
        with self._alone():
            known = self.known.of(f"{name}/")
            self._make_way(name, known, always=True)
            self._bring(listed.values(), known)
        return True

    def _make_way(self, version: str, known: dict[str, Object], always: bool) -> bool:
        """Clears another folder of a version that the bucket has finished. False if it stays: a process just published it."""
        place = self.root / version
        if manifest_of(version) in known or not place.is_dir() or not any(place.iterdir()):
            return True
        with ExitStack() as stack:
            is_free = True
            try:
                stack.enter_context(taken(place))
            except (InUse, OSError):
                is_free = False
                if not always:
                    return False
            if self.known.get(manifest_of(version)) is not None:
                return False
            (place / MANIFEST).unlink(missing_ok=True)
            for child in place.iterdir():
                if is_free or not child.name.startswith("."):
                    if child.is_dir() and not child.is_symlink():
                        shutil.rmtree(child)
                    else:
                        child.unlink()
        self.known.forget(self.known.of(f"{version}/"))
        for path in [path for path in known if path.startswith(f"{version}/")]:
            del known[path]
        return True

    def _bring(self, items: Collection[ObjectEntry], known: Mapping[str, Object]) -> None:
        wanted = [item.key for item in items if is_small(item) and self._is_outdated(item, known.get(item.key))]
        # a folder without a manifest would count as unfinished
        self._download([name for name in wanted if name.endswith(MANIFEST)])
        self._download([name for name in wanted if not name.endswith(MANIFEST)])
        large = [item for item in items if not is_small(item)]
        for item in (item for item in large if is_answers(item.key)):
            self._bring_answers(item, known.get(item.key))
        self.known.note_all(
            (item.key, item.etag, item.bytes, None)
            for item in large
            if not is_answers(item.key) and self._is_other(item, known.get(item.key))
        )

    def _bring_answers(self, item: ObjectEntry, known: Object | None) -> None:
        is_new = known is None or known.etag != item.etag
        if (self.root / item.key).exists():
            if known is None or is_new or not known.is_here:
                self._answers.take(item.key, self.root / item.key)
        elif known is None or is_new or known.is_here:
            self.known.note(item.key, item.etag, item.bytes, None)

    def _outdated(self, items: Iterable[ObjectEntry], known: Mapping[str, Object]) -> list[str]:
        return [item.key for item in items if self._is_outdated(item, known.get(item.key))]

    def _is_outdated(self, item: ObjectEntry, known: Object | None) -> bool:
        """Whether an object is new or changed, and the file here not written since; files of versions only erasures write."""
        file, is_of_version = self.root / item.key, version_of(item.key) is not None
        if known is None or not file.exists():
            return is_of_version or not file.exists()
        return known.etag != item.etag and (is_of_version or known.is_unchanged(file))

    def _is_other(self, item: ObjectEntry, known: Object | None) -> bool:
        if known is not None and known.etag == item.etag:
            return False
        file = self.root / item.key
        if version_of(item.key) is not None or (known is not None and known.is_unchanged(file)):
            file.unlink(missing_ok=True)
        return not file.exists()

    def _drop_removed(self, gone: Collection[str], known: Mapping[str, Object]) -> None:
        """Removes files whose objects were removed, and folders that are empty then. Of a version whose manifest this machine
        never saw in the bucket, the only copy may be here: its files stay."""
        published = {version for version in versions_of(known) if manifest_of(version) in known}
        removed = {version for version in published if manifest_of(version) in gone}
        items = [item for path, item in known.items() if path in gone or version_of(path) in removed]
        items.sort(key=lambda item: not item.path.endswith(MANIFEST))
        forgotten = []
        for item in items:
            file, version = self.root / item.path, version_of(item.path)
            if is_answers(item.path):
                self._answers.drop(item.path, file)
            elif version in published or (version is None and item.is_unchanged(file)):
                file.unlink(missing_ok=True)
            if not file.exists() or (version is not None and version not in published):
                forgotten.append(item.path)
        self.known.forget(reversed(forgotten))  # a manifest last: what is known without it counts as never published
        for path in forgotten:
            with suppress(OSError):
                for folder in list((self.root / path).parents)[: len(PurePosixPath(path).parts) - 1]:
                    folder.rmdir()

    def _download(self, names: Iterable[str]) -> None:
        """Each file is noted as soon as it is there: one that is not noted counts as written here."""

        def fetched(name: str, etag: str, status: stat_result) -> None:
            if is_answers(name):
                self.known.note_lines(name, digests_of((self.root / name).read_bytes()))
            self.known.note(name, etag, status.st_size, status)

        self.bucket.download(((name, self.root / name) for name in names), fetched)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process of a machine at a time changes its mirror."""
        with file_lock(self.root / HOME / "lock"):
            yield
