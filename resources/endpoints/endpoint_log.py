"""The append-only log of one endpoint: who changed it, when and why.

`<lake>/endpoints/log/<workload>/000001.json` and so on: one file per entry, written to a temporary file and renamed, so that a
killed process leaves a whole entry or none. Each entry has the sha256 of its own content and of the previous entry: a changed,
inserted or removed entry breaks the chain (except removal of the last). The digests have no key, so the chain shows errors and
careless edits, but not an attacker who rewrites all later entries. Signed entries show those too."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from model_ops.files import write_json
from model_ops.jobs import CheckFailed, Misuse
from resources.lake import LakeLayout
from resources.releases import GateResult
from resources.signing import EnvelopeError, SigningKey, TrustedKey, TrustedKeys, open_envelope, seal_envelope, signing_key
from stores.mirror.bucket import Conflict

LONGEST_NAME = 200
LONGEST_REASON = 2_000
JOINERS = "\u200c\u200d"
"""Invisible joiners that some languages and emoji need."""


class ActorError(Misuse):
    """The person is unknown, or name or reason cannot be shown in one line."""


@dataclass(frozen=True)
class Actor:
    """Who acts, and why."""

    name: str
    identity_from: str
    """Where the name comes from, such as `MILLRACE_USER`."""
    reason: str = ""

    @classmethod
    def of_command(cls, reason: str | None = None, option: str = "--reason") -> Actor:
        """The person who runs this command. option: with which the reason was given. Raises ActorError if nothing names a
        person, or if name or reason contain control characters or are too long."""
        name, source = _person()
        return cls(_one_line(source, name, LONGEST_NAME), source, _one_line(option, reason or "", LONGEST_REASON))

    @classmethod
    def of_form(cls, name: str, identity_from: str, reason: str = "") -> Actor:
        """A person who gave a name in a form. identity_from: where, such as `Dagster UI`. Raises ActorError as `of_command`
        does, and for an empty name."""
        if not name.strip():
            raise ActorError("the name is empty, and a decision records who took it: give your name")
        return cls(_one_line("the name", name, LONGEST_NAME), identity_from, _one_line("the reason", reason, LONGEST_REASON))


PIPELINE = Actor("pipeline", "pipeline")
AUTOMATIC = Actor("recipe: approval automatic", "recipe")


def _person() -> tuple[str, str]:
    if name := os.environ.get("MILLRACE_USER", "").strip():
        return name, "MILLRACE_USER"
    if name := _git_email():
        return name, "git config user.email"
    with suppress(KeyError):  # a container may run under a uid without a name
        return pwd.getpwuid(os.getuid()).pw_name, "system account"
    if name := os.environ.get("USER", "").strip():
        return name, "USER"
    raise ActorError("nothing says who you are, and an approval records who gave it: set MILLRACE_USER to your name")


def _git_email() -> str:
    try:
        done = subprocess.run(["git", "config", "--get", "user.email"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _one_line(what: str, text: str, longest: int) -> str:
    text = text.strip()
    # what changes how a line is shown, or cannot be shown or stored at all
    if any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") and each not in JOINERS for each in text):
        raise ActorError(f"{what} holds control characters, such as a line break: give plain text in one line")
    if len(text) > longest:
        raise ActorError(f"{what} has {len(text):,} characters, at most {longest:,} are allowed: shorten it")
    return text


Action = Literal["nominated", "approved", "promoted", "named", "unnamed", "withdrawn", "rolled back", "found"]
"""found: the endpoint's file names releases without an entry (written by hand, or its log was moved away)."""
ENTRY = "application/vnd.millrace.endpoint-entry+json"
"""Type of a signed entry."""


class EndpointLogError(CheckFailed):
    """The log is damaged."""


class EndpointLogEntry(BaseModel):
    """One entry. replaces: the champion before a promotion or rollback. generation, candidate, champion, previous, named: the
    endpoint's state after the entry."""

    number: int
    at: datetime
    by: str
    identity_from: str
    action: Action
    workload: str
    release: str | None
    digest: str = ""
    reason: str = ""
    gates: list[GateResult] = Field(default_factory=list)
    replaces: str | None = None
    generation: int = 0
    candidate: str | None = None
    champion: str | None = None
    previous: str | None = None
    named: dict[str, str] = Field(default_factory=dict)
    """Releases by the further aliases of the endpoint, such as canary."""
    alias: str = ""
    """The further alias that the entry moved."""
    envelope: str = ""
    """DSSE envelope of this entry, signed with the key of the person; "" where no key was set."""
    before: str = ""
    sha256: str = ""

    @property
    def rollback_sentence(self) -> str:
        """Of a rollback: who rolled back, when and why, as one sentence."""
        return f"rolled back by {self.by} on {self.at:%Y-%m-%d %H:%M} UTC" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class LogFile:
    """A file of the log: its entry (None if unreadable) and the problem with it ("" if none)."""

    entry: EndpointLogEntry | None
    problem: str


class EndpointLog:
    """The entries of one endpoint."""

    def __init__(self, lake: LakeLayout, workload: str):
        self.folder = lake.root / "endpoints" / "log" / workload
        self._mirror, self._workload = lake.mirror, workload

    def entries(self) -> list[EndpointLogEntry]:
        """All entries, oldest first. Raises EndpointLogError for the first entry that was changed or is missing."""
        entries = []
        for stored in self.stored():
            if stored.problem or stored.entry is None:
                raise EndpointLogError(stored.problem)
            entries.append(stored.entry)
        return entries

    def written(self) -> list[dict[str, Any]]:
        """The content of all entries as they were written, oldest first. Raises EndpointLogError as `entries` does."""
        return [json.loads((self.folder / f"{entry.number:06d}.json").read_text(encoding="utf-8")) for entry in self.entries()]

    def stored(self) -> list[LogFile]:
        """Every file of the log with its problem."""
        self._mirror.pull_folder(self.folder)
        files: list[LogFile] = []
        before, expected = "", 1
        for path in sorted(path for path in self.folder.glob("*.json") if path.stem.isdecimal()):
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                entry, digest = EndpointLogEntry.model_validate(content), entry_digest(content)
            except (OSError, ValueError, TypeError, AttributeError, ValidationError):
                files.append(LogFile(None, self._broken(f"entry {path.name} cannot be read")))
                before, expected = "", int(path.stem) + 1
                continue
            files.append(LogFile(entry, self._problem(path, entry, digest, before, expected)))
            before, expected = entry.sha256, int(path.stem) + 1
        return files

    def write(self, entries: Sequence[EndpointLogEntry], **fields: Any) -> EndpointLogEntry:
        """Writes the entry that follows `entries`, signed if this process has a key, and returns it. The caller holds the
        endpoint's lock."""
        entry = next_entry(entries, signing_key(), **fields)
        self.append(entry)
        return entry

    def append(self, entry: EndpointLogEntry) -> None:
        """Writes an entry as the next one. The caller holds the endpoint's lock."""
        path = self.folder / f"{entry.number:06d}.json"
        if path.exists():
            raise EndpointLogError(f"{path} exists already: another process wrote to this log without its lock; try again")
        write_json(path, entry.model_dump(mode="json"))
        try:
            self._mirror.publish(path)
        except Conflict as error:
            path.unlink()
            raise EndpointLogError(f"{self._workload}: another machine changed the endpoint meanwhile; try again") from error

    def _problem(self, path: Path, entry: EndpointLogEntry, digest: str, before: str, expected: int) -> str:
        if int(path.stem) != expected:
            return self._broken(f"entry {expected} is missing")
        if entry.number != expected or entry.sha256 != digest:
            return self._broken(f"entry {expected} was changed after it was written")
        if entry.before != before:
            return self._broken(f"an entry before entry {expected} was replaced")
        return ""

    def _broken(self, what: str) -> str:
        return (
            f"{self._workload}: the endpoint's log is broken, {what}: restore {self.folder} from a copy, or move it "
            "away, and a new log begins with what the endpoint serves now"
        )


def next_entry(entries: Sequence[EndpointLogEntry], key: SigningKey | None = None, **fields: Any) -> EndpointLogEntry:
    """The next entry: numbered, dated now by default, and chained to the last one. The endpoint's state is the last entry's
    unless `fields` change it. key: signs it."""
    last = entries[-1] if entries else None
    unchanged = (
        {name: getattr(last, name) for name in ("generation", "candidate", "champion", "previous", "named")} if last else {}
    )
    chained = {"number": last.number + 1 if last else 1, "at": datetime.now(UTC), "before": last.sha256 if last else ""}
    entry = EndpointLogEntry.model_validate({**chained, **unchanged, **fields})
    if key is not None:
        entry = entry.model_copy(update={"envelope": seal_envelope(_stated(entry), ENTRY, key)})
    return entry.model_copy(update={"sha256": entry_digest(entry.model_dump(mode="json"))})


def decisions_on(entries: Sequence[EndpointLogEntry], release: str) -> list[EndpointLogEntry]:
    """What approved or withdrew a release, oldest first. A rollback withdraws the champion that it replaces."""
    return [
        entry
        for entry in entries
        if entry.action in ("approved", "withdrawn", "rolled back")
        and release == (entry.replaces if entry.action == "rolled back" else entry.release)
    ]


def entry_digest(content: dict[str, Any]) -> str:
    """sha256 over an entry's content without this digest."""
    signed = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def signer_of(entry: EndpointLogEntry, trusted: TrustedKeys, today: date) -> TrustedKey:
    """The trusted key that signed this entry as it is. Raises EnvelopeError. Fields that a signed statement lacks have
    their defaults."""
    if not entry.envelope:
        raise EnvelopeError("it has no signature")
    statement, key = open_envelope(entry.envelope, ENTRY, trusted, today)
    try:
        same = _stated(EndpointLogEntry.model_validate(statement)) == _stated(entry)
    except ValidationError:
        same = False
    if not same:
        raise EnvelopeError("its signature is that of another entry")
    return key


def _stated(entry: EndpointLogEntry) -> dict[str, Any]:
    """What a person's key signs: everything but the signature and the digest over both."""
    return entry.model_dump(mode="json", exclude={"envelope", "sha256"})
