"""People's requests for a retraining: the cause `request` of a decision, and the sentences about it.

A request is a file, <lake>/deciding/<workload>/requests/<request_id>.json, which is written once and never changed. What came
of it is a row of the table `retraining_decisions`, whose id follows from the request's: one request is decided once."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from model_ops.jobs import Misuse
from resources.deciding.costs import ACTIONS, SPELLED
from resources.deciding.decisions import REQUEST, Action, Decision, Decisions, claim, decision_id
from resources.deciding.evidence import DecideSettings
from resources.endpoints import Actor
from resources.lake import LakeLayout
from stores.mirror.bucket import Conflict

NEVER = datetime.min.replace(tzinfo=UTC)
DESPITE = ("budget", "quiet", "cool_down")
"""What a person may set aside for a request. A run at work and a candidate that waits for a person always hold."""


class RequestError(Misuse):
    """A request that cannot be taken: no reason, an action that does not exist, or no such request."""


@dataclass(frozen=True)
class RetrainingRequest:
    workload: str
    by: str
    identity_from: str
    """`by`, `identity_from`: the person, and the source of the name."""
    why: str
    """Reason in the person's own words, one line."""
    action: Action = "full"
    despite: tuple[str, ...] = ()
    """Limits that the request overrides, from DESPITE."""
    request_id: str = ""
    ts: datetime = NEVER
    """Time of the request."""

    @classmethod
    def of(cls, workload: str, by: Actor, action: str = "full", despite: Iterable[str] = ()) -> RetrainingRequest:
        """Checked. Raises RequestError for an empty reason, an unknown action and an unknown name in `despite`."""
        if not by.reason:
            raise RequestError("the reason is empty, and a request records why a retraining is wanted: say it in one line")
        _checked("action", [action], ACTIONS)
        aside = set(_checked("despite", despite, DESPITE))
        in_order = tuple(name for name in DESPITE if name in aside)
        return cls(workload, by.name, by.identity_from, by.reason, action, in_order)  # type: ignore[arg-type]

    @property
    def decision_id(self) -> str:
        """Of the row that says what came of it."""
        return decision_id(self.workload, REQUEST, "", self.request_id)

    @property
    def cause_text(self) -> str:
        """The cause in one sentence, with the person's own words."""
        aside = f", despite {' and '.join(_SPELLED[name] for name in self.despite)}" if self.despite else ""
        return f"{self.by} asked for {SPELLED[self.action]}{aside}: {self.why}"

    def asked_sentence(self, is_new: bool, settings: DecideSettings | None) -> str:
        """Sentences about a request that was kept. settings: of the recipe; None where the recipe is not known."""
        if is_new:
            return f"request {self.request_id} is kept: {_next(settings)}"
        return (
            f"{self.by} asked for the same at {self.ts:%Y-%m-%d %H:%M} UTC (request {self.request_id}), and it is "
            "not decided yet: nothing was added"
        )

    @property
    def withdrawn_sentence(self) -> str:
        """What is said of a request that was taken back."""
        return f"request {self.request_id} is withdrawn, and nothing will be started for it"

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "despite": list(self.despite), "ts": self.ts.isoformat()}


class Requests:
    """The requests of one workload."""

    def __init__(self, lake: LakeLayout, workload: str):
        self._lake, self._workload, self.folder = lake, workload, folder_of(lake, workload)

    def ask(self, wanted: RetrainingRequest, now: datetime) -> tuple[RetrainingRequest, bool]:
        """Keeps a request. The same words of the same person are one request until it is decided: it comes back with False.
        Raises S3Error if the bucket of a lake is away: nothing is kept then."""
        decided = {each.decision_id for each in Decisions(self._lake, self._workload).seen()}
        self._lake.mirror.pull_folder(self.folder)
        content = json.dumps([wanted.workload, wanted.by, wanted.why, wanted.action, wanted.despite])
        for times in count():
            request = replace(wanted, request_id=hashlib.sha256(f"{content}{times}".encode()).hexdigest()[:12], ts=now)
            if self._write(request):
                return request, True
            if request.decision_id not in decided:
                return _read(self._path(request)) or request, False
        raise AssertionError("count() does not end")

    def all(self) -> list[RetrainingRequest]:
        """Every request, oldest first. A file that cannot be read is left out."""
        self._lake.mirror.pull_folder(self.folder)
        requests = [request for path in self.folder.glob("*.json") if (request := _read(path)) is not None]
        return sorted(requests, key=lambda each: (each.ts, each.request_id))

    def waiting(self, decisions: Collection[Decision]) -> list[RetrainingRequest]:
        """The requests that are not decided yet, oldest first."""
        decided = {each.decision_id for each in decisions}
        return [each for each in self.all() if each.decision_id not in decided]

    def find(self, named: str) -> RetrainingRequest:
        """The request with this id. Raises RequestError if there is none."""
        for request in self.all():
            if request.request_id == named:
                return request
        raise RequestError(
            f"{self._workload} has no request {named}: millrace decisions {self._workload} lists those that are not decided yet"
        )

    def withdraw(self, named: str, by: Actor, now: datetime) -> RetrainingRequest:
        """Withdraws a request and returns it. Raises RequestError if it is unknown or decided already, here or elsewhere."""
        request, table = self.find(named), Decisions(self._lake, self._workload)
        words = f": {by.reason}" if by.reason else ""
        about = (self._workload, request.decision_id, now, REQUEST, request.cause_text, {REQUEST: request.as_record()})
        why = f"{by.name} withdrew the request{words}"
        withdrawn = Decision(*about, [], "nothing", why, False, outcome="cancelled", settled_ts=now)
        if request not in self.waiting(table.seen()) or not table.record(withdrawn):
            raise RequestError(
                f"request {named} was decided already, as decision {request.decision_id}: a run that it started "
                "is ended in the Dagster UI (millrace ui)"
            )
        return request

    def _write(self, request: RetrainingRequest) -> bool:
        """Whether the request's file is new; False if it was there before."""
        path = self._path(request)
        if not claim(path, json.dumps(request.as_record(), ensure_ascii=False) + "\n"):
            return False
        try:
            self._lake.mirror.publish(path)
        except BaseException as error:
            path.unlink()
            if isinstance(error, Conflict):  # somebody asked for the same on another machine
                self._lake.mirror.pull_folder(self.folder)
                return False
            raise
        return True

    def _path(self, request: RetrainingRequest) -> Path:
        return self.folder / f"{request.request_id}.json"


def folder_of(lake: LakeLayout, workload: str) -> Path:
    return lake.root / "deciding" / workload / "requests"


_SPELLED = {"budget": "the budget", "quiet": "the quiet hours", "cool_down": "the cool-down"}


def _checked(what: str, given: Iterable[str], known: Collection[str]) -> list[str]:
    names = list(given)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it is one of {', '.join(known)}"
            raise RequestError(f"{what} is {name!r}, which does not exist; {meant}")
    return names


def _read(path: Path) -> RetrainingRequest | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(path.read_text(encoding="utf-8"))
        return RetrainingRequest(**{**record, "despite": tuple(record["despite"]), "ts": datetime.fromisoformat(record["ts"])})
    return None


def _next(settings: DecideSettings | None) -> str:
    if settings is None:
        return "the sensor `decide` decides it at its next tick, if it is on and the daemon runs"
    if settings.dry_run:
        return (
            "the recipe says automation.decide.dry_run, so the sensor `decide` only writes what it would do; the request "
            "waits until that is false"
        )
    if not settings.enabled:
        return (
            "it waits until the sensor `decide` is on: switch it on in the Dagster UI (Automation), or with "
            "automation.decide.enabled in the recipe"
        )
    return "the sensor `decide` decides it at its next tick, while the daemon runs"
