"""Alerts that were sent or wait to be sent: <lake>/alerts/<workload>/<id>.json, one file per alert.

An alert is written before it is sent, so that a restart loses none, and its file stays, so that its cause is sent once: also
with two daemons on one lake, which take turns under a lock, and on two machines with one lake in a bucket: the one that
publishes the file first sends the alert, and the other only if the first has not tried for TAKEN_OVER. A process that is killed
between a delivery and its record sends this alert again, with the same id."""

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from model_ops.files import try_lock, write_json
from model_ops.machine import pause_after
from resources.lake import LakeLayout
from resources.monitoring.alerts.settings import Alert
from stores.mirror.bucket import Conflict

State = Literal["waiting", "sent", "given_up"]
LOOKS_BACK = timedelta(days=1)
"""Causes that are older than this when alerts are first switched on are not told."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(minutes=60)
TAKEN_OVER = 2 * LONGEST_PAUSE
"""An alert that its machine has not tried for so long is another one's: a machine at work tries again after LONGEST_PAUSE."""


class AtChannel(BaseModel):
    state: State = "waiting"
    """Whether a channel took the alert."""
    tries: int = 0
    """How often it was tried."""
    told: datetime | None = None
    problem: str = ""


class OutboxEntry(BaseModel):
    """One file of the outbox."""

    alert: Alert
    channels: dict[str, AtChannel]
    machine: str = ""
    """The machine that sends it."""
    tried: datetime = datetime.min.replace(tzinfo=UTC)
    """When it was added or last tried."""


class ChannelTrouble(BaseModel):
    """Since when a channel takes nothing, why, and when it is tried next."""

    since: datetime
    why: str
    failures: int = 1
    next_try: datetime


class Notes(BaseModel):
    """<lake>/alerts/<workload>/notes.json."""

    since: datetime
    """Causes before this time are not sent."""
    trouble: dict[str, ChannelTrouble] = Field(default_factory=dict)


class Outbox:
    """The alerts of one workload."""

    def __init__(self, lake: LakeLayout, workload: str):
        self._lake, self.folder, self._machine = lake, lake.root / "alerts" / workload, socket.gethostname()
        self._entries: dict[str, OutboxEntry] = {}
        self.notes = Notes(since=datetime.now(UTC) - LOOKS_BACK)

    @contextmanager
    def opened(self) -> Iterator[bool]:
        """Whether this process has the outbox for the block; another one may be telling at this moment."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a") as lock:
            if not try_lock(lock):
                yield False
                return
            self._read()
            yield True

    def add(self, alert: Alert, channels: Sequence[str], now: datetime) -> bool:
        """Keeps an alert for these channels. False if its cause is too old, was sent before, or another machine sends it."""
        is_known = not self._entries.keys().isdisjoint(alert.same_ids)
        if is_known or (alert.at < self.notes.since and alert.kind not in ("approval", "gates")):
            return False
        entry = OutboxEntry(alert=alert, channels={name: AtChannel() for name in channels}, machine=self._machine, tried=now)
        if not self._write(self._path(alert), entry):
            return False
        self._entries[alert.id] = entry
        return True

    def waiting(self, channel: str, now: datetime) -> list[Alert]:
        """Alerts that the channel has not taken yet and that this machine is to tell, oldest first."""
        entries = [
            entry.alert
            for entry in self._entries.values()
            if channel in entry.channels
            and entry.channels[channel].state == "waiting"
            and (entry.machine == self._machine or now - entry.tried > TAKEN_OVER)
        ]
        return sorted(entries, key=lambda alert: (alert.at, alert.id))

    def settle(self, alert: Alert, channel: str, problem: str, most_tries: int, now: datetime) -> State:
        """Records a try at a channel. problem: why it did not take the alert; "" if it did."""
        entry = self._entries[alert.id]
        at = entry.channels[channel]
        at.tries, at.problem = at.tries + 1, problem
        at.state = "sent" if not problem else "given_up" if at.tries >= most_tries else "waiting"
        at.told = now if not problem else None
        entry.machine, entry.tried = self._machine, now
        self._write(self._path(alert), entry)
        return at.state

    def trouble(self, channel: str, problem: str, now: datetime) -> bool:
        """Records that a channel takes alerts (problem is "") or does not. Whether this is news."""
        known = self.notes.trouble.get(channel)
        if not problem:
            self.notes.trouble.pop(channel, None)
        else:
            failures = known.failures + 1 if known else 1
            pause = pause_after(failures, FIRST_PAUSE, LONGEST_PAUSE)
            self.notes.trouble[channel] = ChannelTrouble(
                since=known.since if known else now, why=problem, failures=failures, next_try=now + pause
            )
        if known is None and not problem:
            return False
        self._write(self.folder / "notes.json", self.notes)
        return known is None or not problem

    def _read(self) -> None:
        self._lake.mirror.pull_folder(self.folder)
        self._entries = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                if path.name == "notes.json":
                    self.notes = Notes.model_validate(content)
                else:
                    self._entries[path.stem] = OutboxEntry.model_validate(content)
            except (OSError, ValueError, ValidationError):
                continue  # its name still says that the cause was sent
        if not (self.folder / "notes.json").exists():
            self._write(self.folder / "notes.json", self.notes)

    def _path(self, alert: Alert) -> Path:
        return self.folder / f"{alert.id}.json"

    def _write(self, path: Path, content: BaseModel) -> bool:
        """False where another machine wrote the file meanwhile."""
        write_json(path, content.model_dump(mode="json"))
        try:
            self._lake.mirror.publish(path)
        except Conflict:
            path.unlink()
            self._lake.mirror.pull_file(path)
            return False
        return True
