"""What the dashboard of a workload shows: rows of its tables by day, its releases and their decisions, what runs cost.

Reads the newest DAYS days of the log tables, manifests, and the endpoint's log. What cannot be read is a sentence in
`problems`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from resources.artefacts import current_manifests
from resources.curating import FeedbackRules, RecordCounts, attach_graded_feedback, feedback_scales
from resources.endpoints import Aliases, Endpoint, EndpointError, EndpointLogEntry, EndpointLogError, standing
from resources.lake import SCHEMAS, LakeLayout, Tables, attach_slice, rows, workbench
from resources.launching import RunRecord, runs, seconds_of_steps
from resources.manifests import Manifest, ManifestError, read_manifest
from resources.reading import CHATS_SOURCE as RATED
from resources.releases import GateResult, ReleaseError, ReleaseRef, gate_problem, read_release
from resources.stages import STAGES, artefact_stages

DAYS = 90
"""Days of traffic that are shown."""
DRIFT_DAYS = 30
DECISIONS = "retraining_decisions"
MOST_DECISIONS, MOST_RUNS, MOST_RELEASES = 20, 20, 12
AROUND = "around steps"


@dataclass(frozen=True)
class ReleaseRow:
    """One release."""

    version: str
    created_at: datetime
    gates: dict[str, GateResult]
    """Measurements of the release."""
    problems: list[str]
    """Gates that it missed."""
    standing: str
    """approved, withdrawn, or none."""
    aliases: list[str]
    """`not offered` in place of `candidate` for one that missed a gate."""
    report: Path
    worth: str = ""

    def measured(self, gate: str) -> float | None:
        result = self.gates.get(gate)
        return result.measured if result is not None else None


@dataclass(frozen=True)
class RunCost:
    """What one run took and made: seconds of steps by group of stages, and money that a teacher's endpoint cost."""

    run_id: str
    at: datetime
    artefacts: list[str]
    seconds: dict[str, float]
    """AROUND: of processes that start, checks, and the code between steps; only where the run's history is there."""
    money: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


@dataclass
class Facts:
    workload: str
    now: datetime
    aliases: Aliases
    log: list[EndpointLogEntry] = field(default_factory=list)
    releases: list[ReleaseRow] = field(default_factory=list)
    """Oldest first, the newest MOST_RELEASES."""
    traffic: list[dict[str, Any]] = field(default_factory=list)
    feedback: list[dict[str, Any]] = field(default_factory=list)
    judged: list[dict[str, Any]] = field(default_factory=list)
    served: list[dict[str, Any]] = field(default_factory=list)
    served_by_day: list[dict[str, Any]] = field(default_factory=list)
    drift: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    records: RecordCounts | None = None
    runs: list[RunCost] = field(default_factory=list)
    """Newest first."""
    problems: list[str] = field(default_factory=list)


def facts_of(lake: LakeLayout, workload: str, now: datetime) -> Facts:
    """Reads everything that the dashboard shows. Never raises for a part that cannot be read."""
    facts = Facts(workload, now, Aliases(workload=workload))
    try:
        facts.log, facts.aliases = Endpoint(lake, workload).seen()
    except (EndpointError, EndpointLogError) as error:
        facts.problems.append(str(error))
    facts.releases = list(_releases(lake, facts))[-MOST_RELEASES:]
    curated = current_manifests(lake, workload).get("curated_interactions")
    feedback = (curated.config.get("feedback") if curated is not None else None) or {}  # as the recipe had it
    rules = FeedbackRules.model_validate({key: feedback[key] for key in ("least", "most") if key in feedback})
    _read_tables(Tables(lake), facts, rules)
    if curated is not None and "records" in curated.metrics:
        facts.records = RecordCounts.of(curated)
    facts.runs = _runs(lake, facts)
    return facts


def _read_tables(tables: Tables, facts: Facts, rules: FeedbackRules) -> None:
    workload, release = facts.workload, facts.aliases.champion or ""
    with workbench() as connection:
        days: list[Any] = []
        for name in ("interactions", "feedback", "judgements"):
            with_rows = sorted(tables.rows_by_day(name, workload))
            days = with_rows[-DAYS:] if name == "interactions" else days
            attach_slice(connection, tables, name, workload, [day for day in with_rows if not days or day >= days[0]])
        facts.traffic = rows(connection, "reporting/traffic_by_day", chats=RATED).to_pylist()
        attach_graded_feedback(connection, feedback_scales(tables, workload, rules))
        facts.feedback = rows(connection, "reporting/feedback_by_day").to_pylist()
        facts.judged = rows(connection, "reporting/judged_by_day").to_pylist()
        for name in ("serving_metrics", "drift"):
            attach_slice(connection, tables, name, workload)
        facts.served = rows(connection, "reporting/served_by_release").to_pylist()
        facts.served_by_day = rows(connection, "reporting/served_by_day").to_pylist()[-DAYS:]
        facts.drift = rows(connection, "reporting/drift_by_day", release=release, days=DRIFT_DAYS).to_pylist()
        if DECISIONS in SCHEMAS:
            attach_slice(connection, tables, DECISIONS, workload)
            facts.decisions = rows(connection, "reporting/decisions", count=MOST_DECISIONS).to_pylist()


def _releases(lake: LakeLayout, facts: Facts) -> Iterator[ReleaseRow]:
    """Every finished release, oldest first."""
    manifests: list[Manifest] = []
    home = lake.artefacts("release") / facts.workload
    for path in home.glob("*/manifest.json"):
        try:
            manifests.append(read_manifest(path.parent))
        except ManifestError as error:
            facts.problems.append(str(error))
    for manifest in sorted(manifests, key=lambda each: each.created_at):
        directory = home / manifest.version
        try:
            release = read_release(directory)
        except ReleaseError as error:
            facts.problems.append(str(error))
            continue
        decided = standing(facts.log, ReleaseRef(version=manifest.version, digest=manifest.digest)) or ""
        gates = {gate.name: gate for gate in release.gates}
        problems = [problem for gate in release.gates if (problem := gate_problem(gate))]
        aliases = [alias for alias, version in facts.aliases.all().items() if version == manifest.version]
        aliases = ["not offered" if alias == "candidate" and problems else alias for alias in aliases]
        about = (gates, problems, decided, aliases, directory / "report.html", release.worth)
        yield ReleaseRow(manifest.version, manifest.created_at, *about)


def _manifests(lake: LakeLayout, workload: str) -> Iterator[Manifest]:
    for kind in ("dataset", "model"):
        for path in (lake.artefacts(kind) / workload).glob("*/*/manifest.json"):
            try:
                yield read_manifest(path.parent)
            except ManifestError:
                continue  # `millrace verify` names it


def _runs(lake: LakeLayout, facts: Facts) -> list[RunCost]:
    """What each run cost, newest first: by the history of its steps, or, where that is not there, by the seconds that its
    artefacts record. Parts of one `millrace run` are one run."""
    groups = {stage.artefact_name: stage.group for stage in artefact_stages()} | {stage.name: stage.group for stage in STAGES}
    by_run: dict[str, list[Manifest]] = {}
    for manifest in _manifests(lake, facts.workload):
        by_run.setdefault(manifest.run_id or "unknown", []).append(manifest)
    together: dict[str, list[RunRecord]] = {}
    for run in runs(lake):
        if run.workload == facts.workload and run.started_at is not None:
            together.setdefault(run.submitted or run.run_id, []).append(run)
    costs = [
        _cost(lake, facts.now, parts, [each for part in parts for each in by_run.pop(part.run_id, [])], groups)
        for parts in list(together.values())[:MOST_RUNS]
    ]
    costs += [_cost_of_artefacts(run_id, manifests, groups) for run_id, manifests in by_run.items()]
    return sorted((run for run in costs if run.seconds or run.money), key=lambda run: run.at, reverse=True)[:MOST_RUNS]


def _cost(
    lake: LakeLayout, now: datetime, parts: list[RunRecord], artefacts: list[Manifest], groups: Mapping[str, str]
) -> RunCost:
    seconds: dict[str, float] = {}
    for part in parts:
        steps = seconds_of_steps(lake, part.run_id)
        ended = part.ended_at or (now if part.is_alive else None)  # the page is made while its own run ends
        for step, took in steps.items():
            if step in groups:  # else a check
                seconds[groups[step]] = seconds.get(groups[step], 0.0) + took
        if ended is not None and part.started_at is not None:
            around = (ended - part.started_at).total_seconds() - sum(took for step, took in steps.items() if step in groups)
            seconds[AROUND] = seconds.get(AROUND, 0.0) + max(0.0, around)
    last = max((at for part in parts for at in (part.started_at, part.ended_at) if at is not None), default=now)
    return RunCost(parts[0].run_id, last, _names(artefacts), seconds, _money(artefacts))


def _cost_of_artefacts(run_id: str, artefacts: list[Manifest], groups: Mapping[str, str]) -> RunCost:
    seconds: dict[str, float] = {}
    for manifest in artefacts:
        group = groups.get(manifest.name.rpartition("/")[2], "datasets")
        if isinstance(took := manifest.metrics.get("seconds"), int | float):
            seconds[group] = seconds.get(group, 0.0) + float(took)
    return RunCost(run_id, max(manifest.created_at for manifest in artefacts), _names(artefacts), seconds, _money(artefacts))


def _names(artefacts: list[Manifest]) -> list[str]:
    return [manifest.name.rpartition("/")[2] for manifest in sorted(artefacts, key=lambda each: each.created_at)]


def _money(artefacts: list[Manifest]) -> float:
    return sum(float(cost) for manifest in artefacts if isinstance(cost := manifest.metrics.get("cost"), int | float))


def served_of(facts: Facts, release: str) -> dict[str, Any]:
    """What servers reported of a release; {} if they did not."""
    return next((row for row in facts.served if row["release"] == release), {})


def summed(rows_of_days: Sequence[dict[str, Any]], column: str) -> int:
    return int(sum(row[column] or 0 for row in rows_of_days))
