"""Endpoint aliases (candidate, champion, previous, further ones): changed by compare-and-swap only, every change logged.

    endpoint = Endpoint(lake, "math-tutor")
    endpoint.nominate(subject)                       # candidate
    endpoint.promote(subject, by)                    # champion; the old champion becomes previous
    endpoint.roll_back(subject, by)                  # champion again; the release that it replaces counts as withdrawn
    endpoint.name("canary", subject, by)             # a further alias
    endpoint.decide("approved", subject, by)         # recorded; the aliases stay

`<lake>/endpoints/<workload>.json` is what a server or a gateway reads. It is replaced as a whole, under a lock, and only if it
did not change since it was read.

Each change writes the entry of the log first and the file second. A process that is killed between the two leaves a log that
is one generation ahead: the next change writes the file from the log, as it does for a file that was changed by hand. A file
that is ahead of its log (the log was moved away, or lost its end) is recorded by an entry `found`. Both repairs happen under
the lock, before anything else is written."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model_ops.files import file_lock, write_text
from model_ops.jobs import CheckFailed
from resources.endpoints.endpoint_log import PIPELINE, Actor, EndpointLog, EndpointLogEntry, decisions_on, next_entry, signer_of
from resources.lake import LakeLayout
from resources.releases import ReleaseRef
from resources.signing import EnvelopeError, trusted_keys
from stores.mirror.bucket import Conflict

RESERVED = ("candidate", "champion", "previous")
"""Aliases that move by runs, approvals and rollbacks."""
ALIAS = re.compile(r"[a-z][a-z0-9-]{0,31}")


class EndpointError(CheckFailed):
    """An alias cannot be changed as requested."""


class Aliases(BaseModel):
    """What one endpoint serves: release versions, and who moved them last. `generation` counts the changes. named: further
    aliases, such as canary."""

    model_config = ConfigDict(extra="forbid")

    workload: str
    generation: int = 0
    candidate: str | None = None
    champion: str | None = None
    previous: str | None = None
    named: dict[str, str] = Field(default_factory=dict)
    changed_at: datetime | None = None
    changed_by: str = ""

    def all(self) -> dict[str, str]:
        """The version that each alias names."""
        fixed = {"champion": self.champion, "candidate": self.candidate, "previous": self.previous}
        return {alias: version for alias, version in {**fixed, **self.named}.items() if version is not None}


class Endpoint:
    """The aliases of one workload, and the log of their changes."""

    def __init__(self, lake: LakeLayout, workload: str):
        self._lake, self._workload, self._path = lake, workload, lake.endpoint(workload)
        self._log = EndpointLog(lake, workload)

    def read(self) -> Aliases:
        """The file that servers read, as it is."""
        self._lake.mirror.pull_file(self._path)
        try:
            return Aliases.model_validate_json(self._path.read_text())
        except FileNotFoundError:
            return Aliases(workload=self._workload)
        except ValueError as error:
            raise EndpointError(f"{self._path} cannot be read as aliases; restore it from a copy") from error

    def seen(self) -> tuple[list[EndpointLogEntry], Aliases]:
        """All entries and the aliases, repaired as the next change would repair them. Writes nothing."""
        entries, _, aliases, _ = self._repaired()
        return entries, aliases

    def entries(self) -> list[EndpointLogEntry]:
        """All entries, oldest first."""
        return self.seen()[0]

    def was_champion(self, version: str) -> bool:
        """Whether a release was ever champion, by the log."""
        return any(version in (entry.champion, entry.replaces, entry.previous) for entry in self.entries())

    def nominate(self, release: ReleaseRef) -> Aliases:
        """Makes a release the candidate; the champion stays. Does nothing for the champion, the candidate, and a release that
        was withdrawn or rolled back."""
        with self._repaired_under_lock() as (entries, aliases):
            if release.version in (aliases.champion, aliases.candidate) or standing(entries, release) == "withdrawn":
                return aliases
            return self._write(entries, aliases, "nominated", release, PIPELINE, {"candidate": release.version})

    def promote(self, release: ReleaseRef, by: Actor, seen: Aliases | None = None) -> Aliases:
        """Makes a release the champion. Promoting the champion again changes nothing. seen: the aliases that the decision was
        based on. Raises EndpointError if the endpoint changed since, and for a release whose last decision is a withdrawal."""
        with self._repaired_under_lock(seen) as (entries, aliases):
            if aliases.champion == release.version:
                return aliases
            if standing(entries, release) == "withdrawn":
                raise EndpointError(f"{self._workload}: release {release.version} was withdrawn meanwhile, so it is not served")
            return self._write(entries, aliases, "promoted", release, by, _as_champion(aliases, release.version))

    def name(self, alias: str, release: ReleaseRef, by: Actor, seen: Aliases | None = None) -> Aliases:
        """Makes a further alias, such as canary, name a release. Raises EndpointError for a name that is reserved or not made
        of small letters, digits and hyphens, for a release whose last decision is a withdrawal, and if the endpoint changed
        since it was `seen`."""
        if alias in RESERVED or not ALIAS.fullmatch(alias):
            raise EndpointError(
                f"{alias!r} cannot be the name of an alias: give small letters, digits and hyphens, at most "
                f"32, and none of {', '.join(RESERVED)}, which move by approve and rollback"
            )
        with self._repaired_under_lock(seen) as (entries, aliases):
            if aliases.named.get(alias) == release.version:
                return aliases
            if standing(entries, release) == "withdrawn":
                raise EndpointError(f"{self._workload}: release {release.version} was withdrawn, so no alias names it")
            named = {**aliases.named, alias: release.version}
            return self._write(entries, aliases, "named", release, by, {"named": named}, alias)

    def unname(self, alias: str, by: Actor) -> Aliases:
        """Removes a further alias. Raises EndpointError if there is none of this name."""
        with self._repaired_under_lock() as (entries, aliases):
            if alias not in aliases.named:
                raise EndpointError(f"{self._workload} has no alias {alias!r}; there are: {', '.join(aliases.named) or 'none'}")
            release = ReleaseRef(version=aliases.named[alias])
            named = {name: version for name, version in aliases.named.items() if name != alias}
            return self._write(entries, aliases, "unnamed", release, by, {"named": named}, alias)

    def roll_back(self, release: ReleaseRef, by: Actor, seen: Aliases | None = None) -> Aliases:
        """Makes a release champion and withdraws the present champion. Raises EndpointError if there is no champion, if it is
        this release, or if the endpoint changed since it was `seen`."""
        with self._repaired_under_lock(seen) as (entries, aliases):
            if aliases.champion is None:
                raise EndpointError(f"{self._workload}: there is no champion to roll back from; approve a release first")
            if aliases.champion == release.version:
                raise EndpointError(f"{self._workload}: release {release.version} is the champion already")
            change = {**_as_champion(aliases, release.version), "named": _not_naming(aliases.named, aliases.champion)}
            return self._write(entries, aliases, "rolled back", release, by, change)

    def decide(
        self, action: Literal["approved", "withdrawn"], release: ReleaseRef, by: Actor, seen: Aliases | None = None
    ) -> Aliases:
        """Records an approval or a withdrawal. A withdrawn release stops being the candidate and loses its further aliases.
        Raises EndpointError for the withdrawal of the champion, and if the endpoint changed since it was `seen`."""
        with self._repaired_under_lock(seen) as (entries, aliases):
            if action == "withdrawn" and aliases.champion == release.version:
                raise EndpointError(
                    f"{self._workload}: release {release.version} is the champion, and the endpoint needs another one: "
                    f"millrace rollback {self._workload}, or approve another release where none served before it"
                )
            change: dict[str, Any] = {}
            if action == "withdrawn":
                change = {"candidate": None} if aliases.candidate == release.version else {}
                if release.version in aliases.named.values():
                    change["named"] = _not_naming(aliases.named, release.version)
            return self._write(entries, aliases, action, release, by, change)

    def problems(self) -> list[str]:
        """Problems of the log and the file, one sentence each."""
        if broken := [stored.problem for stored in self._log.stored() if stored.problem]:
            return broken
        entries, aliases = self._log.entries(), self.read()
        if unsigned := _unsigned(entries):
            return unsigned
        if entries and _state(entries[-1]) != _state(aliases):
            wins = "the file, which is newer" if aliases.generation > entries[-1].generation else "the log"
            return [
                f"{self._path} and its log name different releases (champion {aliases.champion or 'none'}, by the log "
                f"{entries[-1].champion or 'none'}): the next approval, rollback or run of the recipe goes by {wins}"
            ]
        return []

    def _write(
        self,
        entries: Sequence[EndpointLogEntry],
        aliases: Aliases,
        action: str,
        release: ReleaseRef,
        by: Actor,
        change: dict[str, Any],
        alias: str = "",
    ) -> Aliases:
        """Writes an entry, then the file if the entry changes an alias. The caller holds the lock."""
        moved = {**change, "generation": aliases.generation + 1} if change else {}
        moved["replaces"] = aliases.champion if "champion" in change else None
        who = {"by": by.name, "identity_from": by.identity_from, "reason": by.reason}
        of_release = {"release": release.version, "digest": release.digest, "gates": release.gates}
        about = {"action": action, "workload": self._workload, "alias": alias, **who, **of_release}
        entry = self._log.write(entries, **about, **moved)
        return self._write_file(_aliases(entry)) if change else aliases

    def _repaired(self) -> tuple[list[EndpointLogEntry], int, Aliases, Aliases]:
        """All entries including unwritten ones, the number of written entries, the aliases that agree with them, and those of
        the file."""
        entries, on_disk = self._log.entries(), self.read()
        aliases, stored = on_disk, len(entries)
        # a process was killed after the entry and before the file, or another program wrote the file
        if entries and entries[-1].generation >= aliases.generation and _state(entries[-1]) != _state(aliases):
            last = entries[-1].generation
            aliases = _aliases(next(entry for entry in entries if entry.generation == last))
        if _state(aliases) != (_state(entries[-1]) if entries else _state(Aliases(workload=""))):
            state = aliases.model_dump(include={"generation", "candidate", "champion", "previous", "named"})
            by, at = aliases.changed_by or "not recorded", aliases.changed_at or datetime.now(UTC)
            state |= {"workload": self._workload, "by": by, "identity_from": "the endpoint's file", "at": at}
            entries.append(next_entry(entries, action="found", release=aliases.champion, **state))
        return entries, stored, aliases, on_disk

    @contextmanager
    def _repaired_under_lock(self, seen: Aliases | None = None) -> Iterator[tuple[list[EndpointLogEntry], Aliases]]:
        """Takes the lock, repairs what a killed process left, and compares the aliases with `seen`."""
        with self._lock():
            entries, stored, aliases, on_disk = self._repaired()
            if seen is not None and aliases.generation != seen.generation:
                raise EndpointError(f"{self._workload}: the endpoint was changed meanwhile; try again")
            for entry in entries[stored:]:
                self._log.append(entry)
            # not the file as it is now: another machine may have read a longer log, and replaced it since
            if aliases != on_disk:
                self._write_file(aliases)
            yield entries, aliases

    def _write_file(self, aliases: Aliases) -> Aliases:
        write_text(self._path, aliases.model_dump_json(indent=2) + "\n")
        try:
            self._lake.mirror.publish(self._path)
        except Conflict:  # another machine's entry came after this one, and so did its file
            self._path.unlink()
            self._lake.mirror.pull_file(self._path)
        return aliases

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self._path.with_suffix(".lock")):
            yield


def standing(entries: Sequence[EndpointLogEntry], release: ReleaseRef) -> Literal["approved", "withdrawn"] | None:
    """The last decision on a release; None if there is none on exactly these files (for a reference without a digest: on this
    version)."""
    decided: Literal["approved", "withdrawn"] | None = None
    for entry in decisions_on(entries, release.version):
        if entry.action != "approved":
            decided = "withdrawn"
        elif release.digest in ("", entry.digest):
            decided = "approved"
    return decided


def workloads_with_endpoints(lake: LakeLayout) -> list[str]:
    """Every workload that has an endpoint's file or a log."""
    home = lake.root / "endpoints"
    files = {path.stem for path in home.glob("*.json")}
    return sorted(files | {path.name for path in (home / "log").glob("*") if path.is_dir()})


def _as_champion(aliases: Aliases, release: str) -> dict[str, Any]:
    candidate = None if aliases.candidate == release else aliases.candidate
    return {"champion": release, "previous": aliases.champion, "candidate": candidate}


def _aliases(entry: EndpointLogEntry) -> Aliases:
    state = entry.model_dump(include={"workload", "generation", "candidate", "champion", "previous", "named"})
    return Aliases(**state, changed_at=entry.at, changed_by=entry.by)


def _unsigned(entries: Sequence[EndpointLogEntry]) -> list[str]:
    """Where keys are trusted: each entry whose signature does not hold, and each approval without one. Raises KeyProblemError
    for keys that cannot be read."""
    if (trusted := trusted_keys()) is None:
        return []
    unsigned = []
    for entry in entries:
        if entry.envelope or entry.action == "approved":
            try:
                signer_of(entry, trusted, entry.at.date())
            except EnvelopeError as error:
                unsigned.append(f"{entry.workload}: entry {entry.number} ({entry.action} by {entry.by}): {error}")
    return unsigned


def _not_naming(named: dict[str, str], release: str) -> dict[str, str]:
    """The further aliases without those of a release."""
    return {alias: version for alias, version in named.items() if version != release}


def _state(of: EndpointLogEntry | Aliases) -> tuple[int, str | None, str | None, str | None, dict[str, str]]:
    return of.generation, of.candidate, of.champion, of.previous, of.named
