"""Endpoint aliases: candidate, champion, previous. Moved by compare-and-swap only.

    endpoint = Endpoint(lake, "math-tutor")
    endpoint.nominate("a1b2...")            # candidate
    endpoint.promote("a1b2...", by="ana")   # champion; the old champion becomes previous
    endpoint.roll_back(by="ana")            # previous becomes champion again

`<lake>/endpoints/<workload>.json` is what a server or a gateway reads. It is replaced whole, under a lock, and only if
nobody changed it since it was read.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from resources.atomic import write_text
from resources.lake import Lake


class EndpointError(Exception):
    """An alias cannot be moved as asked."""


class Aliases(BaseModel):
    """What one endpoint serves: release versions, and who moved them last. `generation` counts the changes."""

    model_config = ConfigDict(extra="forbid")

    workload: str
    generation: int = 0
    candidate: str | None = None
    champion: str | None = None
    previous: str | None = None
    changed_at: datetime | None = None
    changed_by: str = ""


class Endpoint:
    """The aliases of one workload."""

    def __init__(self, lake: Lake, workload: str):
        self._path = lake.endpoint(workload)
        self._workload = workload

    def read(self) -> Aliases:
        try:
            return Aliases.model_validate_json(self._path.read_text())
        except FileNotFoundError:
            return Aliases(workload=self._workload)
        except ValueError as error:
            raise EndpointError(f"{self._path} cannot be read as aliases; restore it from a copy") from error

    def nominate(self, release: str) -> Aliases:
        """Makes a release the candidate; the champion stays. The champion and the candidate need no nomination."""
        seen = self.read()
        if release in (seen.champion, seen.candidate):
            return seen
        return self._swap(seen, {"candidate": release}, by="pipeline")

    def promote(self, release: str, by: str) -> Aliases:
        """Makes a release the champion. Promoting the champion again changes nothing."""
        seen = self.read()
        if seen.champion == release:
            return seen
        candidate = None if seen.candidate == release else seen.candidate
        return self._swap(seen, {"champion": release, "previous": seen.champion, "candidate": candidate}, by)

    def roll_back(self, by: str) -> Aliases:
        """Swaps champion and previous. Raises EndpointError where there is no previous release."""
        seen = self.read()
        if seen.previous is None:
            raise EndpointError(f"{self._workload}: there is no previous release to roll back to")
        return self._swap(seen, {"champion": seen.previous, "previous": seen.champion}, by)

    def _swap(self, seen: Aliases, change: dict[str, Any], by: str) -> Aliases:
        with self._lock():
            if self.read().generation != seen.generation:
                raise EndpointError(f"{self._workload}: the endpoint was changed by someone else meanwhile; try again")
            wanted = seen.model_copy(
                update={**change, "generation": seen.generation + 1, "changed_at": datetime.now(UTC), "changed_by": by}
            )
            write_text(self._path, json.dumps(wanted.model_dump(mode="json"), indent=2) + "\n")
            return wanted

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
