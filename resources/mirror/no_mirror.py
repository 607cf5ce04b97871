"""A lake on a disk has no mirror: nothing is pulled, fetched or published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any


class NoMirror:
    """Has the methods of resources/mirror/mirror.py."""

    def pull(self) -> None: ...

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

    def fetch(self, directory: Path) -> None: ...

    def fetch_files(self, paths: Iterable[Path], held: Path) -> None: ...

    def publish(self, path: Path) -> None: ...

    def publish_version(self, directory: Path, wait: Callable[[str], None]) -> None: ...

    def push(self) -> None: ...

    def publish_catalog(self, catalog: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_unfinished(self, keep_s: float) -> None: ...
