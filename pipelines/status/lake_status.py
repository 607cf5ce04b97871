"""`millrace status`: which artefacts are current or stale and why, which runs are active, what an endpoint waits for. Nothing
is written and no lock is taken: it works during a run and on a read-only lake. Tables of more than COMPARED_ROWS rows are not
digested: they count as changed if rows were written after the artefact was made."""

from __future__ import annotations

import json
import shlex
import threading
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal

from model_ops.jobs import counted
from pipelines.status.workload_names import workloads_of
from pipelines.storage import last_run
from resources.artefacts import StaleInput, Taint, current_manifests, find_taints, stale_inputs
from resources.digests import slice_digest
from resources.endpoints import Endpoint, EndpointError, EndpointLogError, approvals_of, disagreements, rollback_of, stale_parts
from resources.lake import LakeLayout, Tables
from resources.launching import RunRecord, runs, seconds_of_steps, steps_underway
from resources.manifests import APPROVAL_PAGE, Input, Manifest, ManifestError, erased_in
from resources.releases import GateResult, ReleaseError, gate_problem, read_release
from resources.stages import artefact_stages

if TYPE_CHECKING:  # importing the schema takes a second
    from pipelines.contract import Recipe

COMPARED_ROWS = 50_000
LISTED_OBJECTS = 5_000
LONG_AGO = datetime.min.replace(tzinfo=UTC)
SOURCE_SECONDS = 10.0
TABLES = ("interactions", "cleaned_interactions")
STEPS = {stage.artefact_name: stage.name for stage in artefact_stages()}
"""Artefact -> the step that makes it."""
OPT_IN = {stage.artefact_name for stage in artefact_stages() if stage.opt_in}

State = Literal["current", "stale", "missing", "off"]


@dataclass
class StageStatus:
    """The status of one artefact."""

    stage: str
    state: State
    version: str = ""
    digest: str = ""
    finished_at: datetime | None = None
    seconds: float | None = None
    run_id: str = ""
    reasons: list[str] = field(default_factory=list)
    """Why it is stale, one sentence each."""
    inputs: list[StaleInput] = field(default_factory=list)
    """Outdated inputs."""
    erased: str = ""
    """What was erased: from a dataset since it was made, or from what weights learnt."""


@dataclass
class TableStatus:
    """A workload's rows of a table, from the commit log."""

    table: str
    rows: int
    first_day: date | None
    last_day: date | None
    note: str = ""


@dataclass
class EndpointStatus:
    champion: str = ""
    candidate: str = ""
    """The release that waits for an approval: one that missed a gate is `not_offered` instead."""
    not_offered: str = ""
    worth: str = ""
    """Whether that release, or else the champion, is better than its base and than what was served."""
    previous: str = ""
    changed_at: datetime | None = None
    changed_by: str = ""
    waiting_for: str = ""
    """A person's approval, a gate, a newer release, or nothing."""
    command: str = ""
    """The next step."""
    gates: list[dict[str, Any]] = field(default_factory=list)
    """The candidate's gates, each with number, interval, bound and a sentence (`why`)."""
    failed_gates: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Why the candidate cannot be approved, apart from its gates: parts that do not belong together, or are no longer
    current."""
    problem: str = ""
    tainted: list[str] = field(default_factory=list)
    """Aliases that name a release whose weights learnt rows that were erased since."""
    rolled_back: str = ""
    """Who rolled back the release that served before, and why; "" if the champion came by a promotion."""


@dataclass
class WorkloadStatus:
    workload: str
    stages: list[StageStatus]
    tables: list[TableStatus]
    endpoint: EndpointStatus
    next: str = ""
    """What to do now: a command."""
    unread_objects: int | None = None
    unread_more: bool = False
    sources_problem: str = ""


@dataclass
class RunStatus:
    run_id: str
    job: str
    status: str
    started_at: datetime | None
    ended_at: datetime | None
    process: str
    is_alive: bool | None
    """False if the process of a run in progress is gone; null if unknown."""
    steps: list[str]
    is_copied: bool = False
    """Whether its process works on the lake that this one is a copy of."""


@dataclass
class Status:
    lake: str
    at: datetime
    workloads: list[WorkloadStatus]
    running: list[RunStatus]
    last_run: RunStatus | None = None
    """The run that ended last."""

    def as_json(self) -> str:
        keys = {"finished_at": "made_at"}
        content = asdict(self, dict_factory=lambda items: {keys.get(name, name): value for name, value in items})
        return json.dumps(content, default=str, ensure_ascii=False)


def status_of(lake: LakeLayout, recipe: Recipe | None = None) -> Status:
    """The status of all workloads of the lake, or of the recipe's only."""
    seen = runs(lake)
    names = [recipe.workload] if recipe else workloads_of(lake)
    ended = [run for run in seen if not run.is_in_progress and (recipe is None or run.workload in ("", recipe.workload))]
    return Status(
        lake.place,
        datetime.now(UTC).replace(microsecond=0),
        [_workload(lake, name, recipe, seen) for name in names],
        [
            _run(run, steps_underway(lake, run.run_id))
            for run in seen
            if run.is_in_progress and not (run.is_alive is False and _is_redone(run, seen))
        ],
        max((_run(run, []) for run in ended), key=lambda run: run.ended_at or LONG_AGO, default=None),
    )


def _is_redone(run: RunRecord, seen: list[RunRecord]) -> bool:
    """Whether a later run of the same job and workload ended well, so that nothing is left of this one's work."""
    began, of = run.started_at or LONG_AGO, (run.workload, run.job)
    return any(
        (each.workload, each.job) == of and each.status == "SUCCESS" and (each.ended_at or LONG_AGO) > began for each in seen
    )


def _run(run: RunRecord, steps: list[str]) -> RunStatus:
    alive = run.is_alive if run.is_in_progress else False
    return RunStatus(run.run_id, run.job, run.status, run.started_at, run.ended_at, run.process, alive, steps, run.is_copied)


def _workload(lake: LakeLayout, workload: str, recipe: Recipe | None, seen: list[RunRecord]) -> WorkloadStatus:
    manifests = current_manifests(lake, workload)
    slices = _Slices(Tables(lake), workload)
    planned = _planned(recipe, lake, slices) if recipe else {}
    differing = {
        name: difference
        for name, plan in planned.items()
        if name in manifests and (difference := plan.differs_from(manifests[name]))
    }
    stale = stale_inputs(manifests, slices.now, outdated=differing)
    taints = find_taints(lake)
    status = WorkloadStatus(workload, [], slices.counted(), endpoint_status(lake, workload))
    status.endpoint.tainted = [
        f"{alias} {version}"
        for alias in ("champion", "candidate", "previous")
        if (version := getattr(status.endpoint, alias)) and f"release:{workload}/release@{version}" in taints
    ]
    disabled = recipe.disabled if recipe is not None else _switched_off(lake, workload, manifests)
    named = recipe.datasets.named if recipe is not None else {}
    for name in [*STEPS, *named, *(name for name in manifests if name not in STEPS and name not in named)]:
        manifest = manifests.get(name)
        is_off = STEPS.get(name, name) in disabled
        if manifest is None and name in OPT_IN and (is_off or (recipe is None and not disabled)):
            continue
        if manifest is None:
            status.stages.append(StageStatus(name, "off" if is_off else "missing"))
            continue
        reasons = [differing[name]] if name in differing else []
        if name in planned and planned[name].unknown:
            reasons.append(f"not compared: {planned[name].unknown}")
        reasons += [str(item) for item in stale.get(name, [])] + slices.doubts(manifest)
        is_stale = name in differing or name in stale
        run_id, seconds = _run_behind(lake, name, manifest, seen)
        status.stages.append(
            StageStatus(
                name,
                "off" if is_off else "stale" if is_stale else "current",
                manifest.version,
                manifest.digest,
                manifest.created_at,
                seconds,
                run_id,
                [] if is_off else reasons,
                stale.get(name, []),
                _erased(lake, manifest, taints),
            )
        )
    if recipe is not None:
        _look_for_unread(status, recipe, Tables(lake))
    status.next = _next_step(lake, status)
    return status


def _erased(lake: LakeLayout, manifest: Manifest, taints: dict[str, Taint]) -> str:
    taint = taints.get(f"{manifest.kind}:{manifest.name}@{manifest.version}")
    if taint is not None:
        return f"tainted: its weights learnt {counted(taint.rows, 'row')} erased since"
    if manifest.kind != "dataset":
        return ""
    try:
        record = erased_in(lake.artefacts("dataset") / manifest.name / manifest.version)
    except ValueError as error:
        return f"erased.json cannot be read: {type(error).__name__}"
    return record.sentence if record is not None else ""


def _switched_off(lake: LakeLayout, workload: str, manifests: dict[str, Manifest]) -> list[str]:
    """Stages that the recipe last run switches off; none if all artefacts exist or its file cannot be read."""
    place = last_run(lake, workload)
    if place is None or manifests.keys() >= STEPS.keys() - OPT_IN:
        return []
    from pipelines.contract import RecipeProblemsError, load_recipe

    try:
        recipe = load_recipe(place)
    except (RecipeProblemsError, OSError):
        return []
    return recipe.disabled if recipe.workload == workload else []


def _planned(recipe: Recipe, lake: LakeLayout, slices: _Slices) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dagster's warnings about parts of its API that may change
        from pipelines.status.planned_versions import planned_versions
    return planned_versions(recipe, lake, slices.digest)


class _Slices:
    def __init__(self, tables: Tables, workload: str):
        self._tables, self._workload = tables, workload
        self._digests: dict[tuple[str, bool], str | None] = {}
        self._rows: dict[str, int] = {}

    def digest(self, table: str, as_served: bool) -> str | None:
        key = (table, as_served)
        if key not in self._digests:
            few = self._count(table) <= COMPARED_ROWS
            self._digests[key] = slice_digest(self._tables, table, self._workload, as_served, remember=False) if few else None
        return self._digests[key]

    def now(self, manifest: Manifest, item: Input) -> str | None:
        """The current digest of an input, for stale_inputs. External files are compared only by the recipe's plan, which knows
        their paths."""
        if item.kind != "table":
            return None
        try:
            return self.digest(item.name, manifest.op == "build_served_answers")
        except (ValueError, OSError):
            return None

    def doubts(self, manifest: Manifest) -> list[str]:
        """Sentences about large input tables that were written to after the artefact was made."""
        large = [item.name for item in manifest.inputs if item.kind == "table" and self._count(item.name) > COMPARED_ROWS]
        written = {name: self._tables.written_at(name, self._workload) for name in large}
        return [f"may be stale: {name} was written to since" for name, at in written.items() if at and at > manifest.created_at]

    def counted(self) -> list[TableStatus]:
        tables = []
        for name in TABLES:
            try:
                days = self._tables.rows_by_day(name, self._workload)
            except Exception as error:  # delta-rs raises its own errors for a truncated log
                tables.append(TableStatus(name, 0, None, None, f"cannot be read: {type(error).__name__}"))
                continue
            tables.append(TableStatus(name, sum(days.values()), min(days, default=None), max(days, default=None)))
        return tables

    def _count(self, table: str) -> int:
        if table not in self._rows:
            self._rows[table] = sum(self._tables.rows_by_day(table, self._workload).values())
        return self._rows[table]


def _run_behind(lake: LakeLayout, name: str, manifest: Manifest, seen: list[RunRecord]) -> tuple[str, float | None]:
    if manifest.run_id:
        seconds = seconds_of_steps(lake, manifest.run_id).get(STEPS.get(name, name))
        return manifest.run_id, None if seconds is None else round(seconds, 1)
    for run in seen:
        ended = run.ended_at or datetime.now(UTC)
        if run.started_at is not None and run.started_at <= manifest.created_at <= ended:
            seconds = seconds_of_steps(lake, run.run_id).get(STEPS.get(name, name))
            if seconds is not None:
                return run.run_id, round(seconds, 1)
    return "", None


def endpoint_status(lake: LakeLayout, workload: str) -> EndpointStatus:
    """Who serves, which candidate waits, for what, and its gates."""
    try:
        aliases = Endpoint(lake, workload).read()
    except (EndpointError, EndpointLogError) as error:
        return EndpointStatus(problem=str(error))
    status = EndpointStatus(aliases.champion or "", aliases.candidate or "", previous=aliases.previous or "")
    with suppress(EndpointError, EndpointLogError):
        entries = Endpoint(lake, workload).entries()
        for before, entry in zip([None, *entries], entries, strict=False):
            if entry.champion and entry.champion != (before and before.champion):
                status.changed_at, status.changed_by = entry.at, entry.by
        back = rollback_of(entries, aliases.previous or "")
        status.rolled_back = f"release {back.replaces} was {back.rollback_sentence}" if back else ""
    if shown := aliases.candidate or aliases.champion:
        with suppress(ReleaseError):
            status.worth = read_release(lake.artefacts("release") / workload / shown).worth
    if aliases.candidate:
        directory = lake.artefacts("release") / workload / aliases.candidate
        try:
            status.gates = [_gate(gate) for gate in read_release(directory).gates]
            status.failed_gates = [gate for gate in status.gates if not gate["passed"]]
            status.faults = [*disagreements(lake, directory), *stale_parts(lake, directory)]
            approvals = approvals_of(lake, directory)
        except (ReleaseError, ManifestError, EndpointError, EndpointLogError, OSError, ValueError) as error:
            status.problem = f"candidate {aliases.candidate} cannot be read: {error}"
            return status
        command = f"millrace approve {aliases.candidate} {lake.option}"
        if status.failed_gates:
            status.waiting_for, status.not_offered, status.candidate = "a gate", status.candidate, ""
        elif status.faults:
            status.waiting_for = "a newer release"
        elif not approvals.missing:
            status.waiting_for, status.command = "the next run of endpoint", ""
        elif approvals.withdrawn:
            status.waiting_for = "a newer release, because it was withdrawn"
        else:
            status.waiting_for, status.command = f"{approvals.needed}'s approval", command
    return status


def _gate(gate: GateResult) -> dict[str, Any]:
    problem = gate_problem(gate)
    why = problem.removeprefix(f"gate {gate.name}: ") if problem else gate.why or gate.held
    return {**gate.model_dump(), "passed": problem is None, "state": gate.state, "why": why}


def _next_step(lake: LakeLayout, workload: WorkloadStatus) -> str:
    recipe, ends = last_run(lake, workload.workload), workload.endpoint
    run = f"millrace run {shlex.quote(str(recipe)) if recipe and recipe.exists() else 'RECIPE'} {lake.option}"
    if ends.command:
        page = lake.artefacts("release") / workload.workload / ends.candidate / APPROVAL_PAGE
        return f"{f'read {page}, then ' if page.exists() else ''}{ends.command}"
    if ends.not_offered:
        keys = ", ".join(f"release.gates.{gate['name'].partition('/')[0]}" for gate in ends.failed_gates)
        return f"mend what the gate says, or change its bound ({keys}), then {run}"
    if not ends.champion or any(stage.state in ("stale", "missing") for stage in workload.stages):
        return run
    return f"millrace serve {workload.workload} {lake.option}"


def _look_for_unread(status: WorkloadStatus, recipe: Recipe, tables: Tables) -> None:
    """Counts unread objects among the first LISTED_OBJECTS of each source, within a time limit."""
    from resources.reading import with_chats
    from resources.sources import new_objects

    result: dict[str, Any] = {}

    def look() -> None:
        try:
            sources = with_chats(tables.lake.root, recipe.workload, recipe.sources)
            result["found"] = new_objects(tables, recipe.workload, sources, {}, LISTED_OBJECTS)
        except Exception as error:
            result["problem"] = " ".join(str(error).split())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(SOURCE_SECONDS)
    if "found" in result:
        status.unread_objects, status.unread_more = result["found"].objects, bool(result["found"].cursor)
    else:
        status.sources_problem = result.get("problem", f"the sources did not answer within {SOURCE_SECONDS:g} s")
