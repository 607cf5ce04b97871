"""Sensor `decide`: decides whether anything is worth retraining, starts the least that helps, and settles what came of it. A
decision is written before its run is asked for, and its id is the run's key: a repeated tick, a lost cursor and a second daemon
ask for the same run. One that never came is asked for again, but not in quiet hours."""

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from pipelines.contract import Recipe
from pipelines.graph.schedules import TRAIN
from resources.deciding import Decision, DecisionRun, Decisions, RecipeFacts, Work, decide, pulse, quiet_hold, settle_decision
from resources.lake import LakeError, LakeLayout
from resources.launching import postgres
from stores.mirror.no_mirror import NoMirror
from stores.s3 import S3Error

AWAY = (OSError, LakeError, S3Error)
"""A store that is away: said, and tried again at the next tick."""
STARTED_AGAIN_S = 3_600.0
"""Seconds in which the daemon starts a killed run again; after them, it has failed."""
LOST_AFTER = timedelta(days=1)
"""A run that another machine decided on and has not begun for so long is started here."""


def deciding(recipe: Recipe, place: Path, train_job) -> dg.SensorDefinition:
    facts = recipe.facts
    status = dg.DefaultSensorStatus.RUNNING if facts.decide.enabled else dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name="decide",
        job=train_job,
        minimum_interval_seconds=60,
        default_status=status,
        description="Every minute: looks for causes of a retraining (requests, new logs, drift, acceptance, feedback, "
        "the schedule) and starts the least that helps, within the budget of `automation.decide`. Every decision is in "
        "the table retraining_decisions. On where the recipe says `automation.decide: {enabled: true}`, or when switched on "
        "here.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            return tick(LakeLayout.open(place), facts, context.instance, context.cursor, datetime.now(UTC))
        except AWAY as error:
            return dg.SkipReason(f"the lake or a log store is away, and the next tick tries again: {error}")

    return sensor


def tick(
    lake: LakeLayout, facts: RecipeFacts, instance: dg.DagsterInstance, cursor: str | None, now: datetime
) -> dg.SensorResult:
    """One tick: settles, then decides. The cursor holds what was seen, so that an unchanged lake is not looked at again."""
    before, settings = _read(cursor), facts.decide
    seen = pulse(lake, facts)
    if not before.get("open") and before.get("pulse") == seen and now < _time(before.get("again_at")):
        return dg.SensorResult(skip_reason=before.get("said") or "nothing changed", cursor=cursor)
    ledger, history = Decisions(lake, facts.workload), _history(lake, instance)
    decisions = _settled(ledger, lake, facts, instance)
    unstarted = [each for each in decisions if each.outcome == "waiting" and each.run_id is None and _asks(each, history, now)]
    wanted = [run_request(each, Work.of(each, facts)) for each in unstarted if quiet_hold(settings, now, each.despite) is None]
    if wanted:
        return dg.SensorResult(run_requests=wanted, cursor=_cursor(seen, True, now, "a run was asked for"))
    if unstarted:
        return dg.SensorResult(
            skip_reason=f"the run of decision {unstarted[0].decision_id} is asked for when quiet hours end "
            "(automation.decide.quiet)",
            cursor=_cursor(seen, True, now, "quiet hours"),
        )
    outcome = decide(lake, facts, decisions, now)
    still_open = any(each.is_open for each in decisions)
    if outcome.decision is None:
        return dg.SensorResult(
            skip_reason="no cause that was not decided on",
            cursor=_cursor(seen, still_open, outcome.again_at, "nothing changed"),
        )
    if not ledger.record(
        replace(outcome.decision, evidence=outcome.decision.evidence | ({"history": history} if history else {}))
    ):
        skip_reason = f"another process has decided {outcome.decision.decision_id}"
        return dg.SensorResult(skip_reason=skip_reason, cursor=_cursor("", still_open, now, ""))
    if outcome.work is None:
        skip_reason = f"{outcome.decision.cause_text}: {outcome.decision.why}"
        return dg.SensorResult(skip_reason=skip_reason, cursor=_cursor("", still_open, outcome.again_at, outcome.decision.why))
    return dg.SensorResult(run_requests=[run_request(outcome.decision, outcome.work)], cursor=_cursor("", True, now, ""))


def _history(lake: LakeLayout, instance: dg.DagsterInstance) -> str:
    """This machine's history of Dagster, where others may decide on the same lake (in a bucket, without Postgres); else ""."""
    if isinstance(lake.mirror, NoMirror) or postgres.url():
        return ""
    return f"{socket.gethostname()}:{instance.root_directory}"


def _asks(decision: Decision, history: str, now: datetime) -> bool:
    """Whether this machine asks for a decision's run: its own decisions, and those of a machine that seems to be lost."""
    return decision.evidence.get("history", history) == history or now - decision.ts > LOST_AFTER


def _settled(ledger: Decisions, lake: LakeLayout, facts: RecipeFacts, instance: dg.DagsterInstance) -> list[Decision]:
    decisions = ledger.all()
    settled = [settle_decision(each, run_of(instance, each), lake, facts) if each.is_open else each for each in decisions]
    changed = [after for before, after in zip(decisions, settled, strict=True) if after != before]
    ledger.settle(*changed)
    return settled


def run_of(instance: dg.DagsterInstance, decision: Decision) -> DecisionRun | None:
    """The newest run of a decision, with what its earlier tries took: the daemon starts a killed run again, or a person did."""
    records: Sequence[Any] = instance.get_run_records(dg.RunsFilter(tags={DECISION_TAG: decision.decision_id}))
    if not records:
        return None
    newest, *earlier = records
    run, status = newest.dagster_run, newest.dagster_run.status.value
    if status == "FAILURE" and _is_tried_again(newest):
        status = "STARTED"
    return DecisionRun(
        run.run_id,
        status,
        _seconds(newest.start_time),
        _seconds(newest.end_time),
        sum(each.end_time - each.start_time for each in earlier if each.start_time and each.end_time),
    )


def _is_tried_again(record: dg.RunRecord) -> bool:
    """Whether the daemon is about to start a failed run again, under the same decision: it was killed, say."""
    return record.dagster_run.tags.get("dagster/will_retry") == "true" and (
        time.time() - (record.end_time or 0.0) < STARTED_AGAIN_S
    )


def _seconds(at: float | None) -> datetime | None:
    return datetime.fromtimestamp(at, UTC) if at else None


def _read(cursor: str | None) -> dict[str, Any]:
    """The cursor; {} for one of another version, which then counts as none."""
    try:
        state = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return state if isinstance(state, dict) else {}


def _time(text: str | None) -> datetime:
    try:
        return datetime.fromisoformat(text) if text else datetime.min.replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _cursor(seen: str, is_open: bool, again_at: datetime, said: str) -> str:
    return json.dumps({"pulse": seen, "open": is_open, "again_at": again_at.isoformat(), "said": said})


DECISION_TAG = "millrace/decision"
CAUSE_TAG = "millrace/cause"
WHY_TAG = "millrace/why"
KEPT_TAG = "millrace/kept"
LONGEST = 255
"""Characters of a tag: a database may hold no more."""


def run_request(decision: Decision, work: Work) -> dg.RunRequest:
    """The request. Dagster starts one run for a key, however often it is asked for."""
    return dg.RunRequest(
        run_key=decision.decision_id,
        job_name=TRAIN,
        asset_selection=[dg.AssetKey([decision.workload, name]) for name in work.stages],
        run_config={"ops": {name: {"config": dict(values)} for name, values in work.overrides.items() if name in work.stages}},
        tags={
            DECISION_TAG: decision.decision_id,
            CAUSE_TAG: decision.cause,
            WHY_TAG: decision.cause_text[:LONGEST],
            **({KEPT_TAG: ",".join(work.pinned)} if work.pinned else {}),
        },
    )


def unchanged_models(run: dg.DagsterRun | None) -> frozenset[str]:
    """The models that a run takes as they are; none for a run that no decision asked for."""
    named = run.tags.get(KEPT_TAG, "") if run is not None else ""
    return frozenset(name for name in named.split(",") if name)
