"""A lake on a disk has no mirror: nothing is pulled, fetched or published."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from stores.s3 import ObjectEntry


class NoMirror:
    """Has the methods of stores/mirror/mirror.py."""

    def may_write(self) -> None: ...

    def pull(self, over_drafts: bool = False) -> None: ...

    def require_whole(self) -> None: ...

    def pull_file(self, path: Path) -> None: ...

    def pull_folder(self, folder: Path) -> None: ...

    def pull_log(self, table: Path) -> None: ...

    def pull_version(self, directory: Path) -> bool:
        return False

    def at_work(self, wait: Callable[[str], None]) -> AbstractContextManager[None]:
        return nullcontext()

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def ingesting(self, wait: Callable[[str], None]) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def committing(self, table: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        yield str(table), {}

    def table(self, table: Path) -> DeltaTable:
        return DeltaTable(str(table))

    def table_files(self, table: Path) -> dict[str, ObjectEntry]:
        files = {}
        for path in (path for path in table.rglob("*") if path.is_file()):
            status = path.stat()
            name = path.relative_to(table).as_posix()
            files[name] = ObjectEntry(name, status.st_size, "", datetime.fromtimestamp(status.st_mtime, UTC))
        return files

    def remove_table_files(self, table: Path, paths: Iterable[str]) -> None:
        for path in paths:
            (table / path).unlink(missing_ok=True)

    def fetch(self, directory: Path, wanted: Callable[[Path, int], bool] | None = None) -> None: ...

    def fetch_files(self, paths: Iterable[Path]) -> None: ...

    def publish(self, path: Path) -> None: ...

    def publish_version(self, directory: Path, wait: Callable[[str], None]) -> None: ...

    def push(self) -> None: ...

    def publish_catalog(self, catalog: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_unfinished(self, keep_s: float) -> None: ...
