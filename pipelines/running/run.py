"""The process of one run: finds what is new in the logs, runs the `logs` job over the days that need it, then `train`. Events
go to the file named by MILLRACE_PROGRESS. Exit codes: 0 success, 1 a step failed, 2 misuse, 130 interrupted."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import uuid
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import dagster as dg
from pydantic import BaseModel, ConfigDict

from model_ops.files import write_json
from model_ops.jobs import counted
from model_ops.machine import end_process
from pipelines.contract import Recipe, RecipeProblemsError, load_recipe
from pipelines.graph import daily_partitions, definitions, first_day
from pipelines.running.instance import fail_dead_runs, failing_dead_runs, open_instance
from pipelines.running.outcome import INTERRUPTED
from pipelines.running.submission import EXIT, STARTED, Run, others_running, runs_of
from pipelines.storage import StorageError, location_name, remember, require_writable, storage_sentence
from resources.artefacts import keep_seconds
from resources.erasing import complete_unfinished, is_learnt, keep_counts_only, rows_with_text
from resources.lake import LakeError, LakeInUse, LakeLayout, Tables, at_work
from resources.launching import HOST_TAG, PROCESS_TAG, RUN_TAG, origin_of, relay, this_process
from resources.reading import moved_note, observe, with_chats
from resources.sources import SourceError
from resources.stages import daily_stages, logs_stages
from stores.s3 import S3Error

NOT_RETRIED = {"dagster/max_retries": "0"}
"""The daemon does not continue a run of `millrace run`: the next `millrace run` does."""
RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


STATES = {dg.DagsterEventType.STEP_START: "started", dg.DagsterEventType.STEP_SUCCESS: "finished"}
INTERRUPTIONS = {"DagsterExecutionInterruptedError", "KeyboardInterrupt", "WorkerStopped"}
DUCKDB_INTERRUPTED = "Query interrupted"
"""DuckDB's message, in a RuntimeError, after Ctrl-C during a query."""


class RunRequest(BaseModel):
    """The request of a run."""

    model_config = ConfigDict(extra="forbid")

    id: str
    recipe: Path
    lake: Path
    folder: Path
    """The folder in which the run records its start and its exit code."""
    select: list[str] | None = None
    partition: date | None = None


class StepError(Protocol):
    """Dagster's record of an error: its class, its message, and its cause."""

    cls_name: str | None
    message: str

    @property
    def cause(self) -> StepError | None: ...


class SelectionError(Exception):
    """--select does not name an asset of the recipe's graph."""


def run(request: RunRequest) -> int:
    """Runs a request; returns 0 if every step succeeded."""
    recipe = load_recipe(request.recipe)
    lake = LakeLayout.open(request.lake)
    require_writable(lake.root)
    keep_seconds()  # report an error in the environment now, not in the first step that needs the lake
    if completed := complete_unfinished(lake):
        _note(f"completed {counted(completed, 'erasure')} that had been stopped")
    with at_work(lake):
        exit_code = _at_work(request, recipe, lake)
    if exit_code == 0 and request.select is None:  # the rest of the graph may need the rows that a part has learnt
        _remove_texts(recipe, lake)
    return exit_code


def _remove_texts(recipe: Recipe, lake: LakeLayout) -> None:
    """Removes what sources that keep only counts said, if a model has learnt it."""
    sources = recipe.retention.counts_only if recipe.retention else []
    if not sources or not rows_with_text(lake, recipe.workload, sources):
        return
    if not is_learnt(lake, recipe.workload):
        _note(
            f"no model has learnt the rows of {', '.join(sources)} yet, so their texts stay "
            "until one has (retention.counts_only)"
        )
        return
    try:
        removed = keep_counts_only(lake, recipe.workload, sources)
    except LakeInUse:
        _note(
            "another run is at work, so texts of retention.counts_only stay until it ends: "
            "`millrace retain RECIPE --apply` removes them"
        )
        return
    _note(
        f"removed the texts of {counted(removed.interactions, 'row')} of {', '.join(sources)}: "
        "only counts stay (retention.counts_only)"
    )


def _at_work(request: RunRequest, recipe: Recipe, lake: LakeLayout) -> int:
    """Runs a request while no erasure may begin."""
    remember(lake, recipe.workload, request.recipe)
    instance = open_instance(lake)
    for run_id in fail_dead_runs(instance):
        _tell_dead(run_id)
    for other in others_running(request.folder):
        _note(
            f"{_at(other)} on this lake: steps of its kind wait for it, and what it finishes is reused; `kill -INT "
            f"{other.pid}` stops it, and its finished steps are kept"
        )
    graph = definitions(request.recipe, request.lake)
    chosen = _selected(graph, recipe, request.select)
    return _run(request, recipe, lake, graph, chosen, instance)


def _note(message: str) -> None:
    relay({"event": "note", "message": message})


def _tell_dead(run_id: str) -> None:
    message = f"run {run_id[:8]} is no longer at work on this lake (killed, or copied with it); its finished steps are kept"
    _note(message)


def _at(other: Run) -> str:
    """Another run and its step, as the beginning of a sentence. `status` names the process too, and another id."""
    return f"another run (process {other.pid}) is at {other.current_step or 'work'}"


def _run(
    request: RunRequest,
    recipe: Recipe,
    lake: LakeLayout,
    graph: dg.Definitions,
    chosen: list[dg.AssetKey],
    instance: dg.DagsterInstance,
) -> int:
    logs = logs_stages(recipe.disabled)
    daily = [key for key in chosen if key.path[-1] in logs]
    if daily:
        days = _days(recipe, lake, request.partition, instance)
        graph = definitions(request.recipe, request.lake)  # the first day is known only now
        tags = {} if not days else dict(zip(RANGE_TAGS, (days[0].isoformat(), days[-1].isoformat()), strict=True))
        if days and not _execute(graph, "logs", daily, instance, lake, tags, request):
            return 1
    rest = [key for key in chosen if key.path[-1] not in logs]
    if rest and not _execute(graph, "train", rest, instance, lake, {}, request):
        return 1
    return 0


def _selected(graph: dg.Definitions, recipe: Recipe, select: list[str] | None) -> list[dg.AssetKey]:
    """The materializable assets of a selection in Dagster's syntax, which omits the workload's prefix."""
    asset_graph = graph.resolve_asset_graph()
    names = {key.path[-1]: key for key in asset_graph.get_all_asset_keys()}
    everything = [key for key in asset_graph.toposorted_asset_keys if key in asset_graph.executable_asset_keys]
    if select is None:
        return everything
    items = [part for item in select for part in ([item] if '"' in item else item.split(",")) if part.strip()]
    expression = " or ".join(f"({item})" for item in items)
    unknown = set(re.findall(r"[A-Za-z_]\w*", expression)) - set(names) - {"and", "or", "not", "key", "group", "kind"}
    if unknown and ":" not in expression:
        raise SelectionError(f"--select: no asset named {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    for name in sorted(names, key=len, reverse=True):
        expression = re.sub(rf'(?<![\w"/:]){name}(?![\w"/])', f'key:"{recipe.workload}/{name}"', expression)
    try:
        selection = dg.AssetSelection.from_string(expression).required_multi_asset_neighbors().resolve(asset_graph)
    except dg.DagsterError as error:
        raise SelectionError(
            f"--select {' '.join(select)}: this is not a selection in Dagster's syntax, as sft_model, "
            '+sft_dataset or "sft_model or +sft_dataset" are; a comma means `or`'
        ) from error
    chosen = [key for key in everything if key in selection]
    if not chosen:
        raise SelectionError(f"--select {' '.join(select)}: nothing there can be materialized; there are {', '.join(names)}")
    return chosen


def _days(recipe: Recipe, lake: LakeLayout, partition: date | None, instance: dg.DagsterInstance) -> list[date]:
    seen = observe(Tables(lake), recipe.workload, with_chats(lake.root, recipe.workload, recipe.sources))
    if seen.moved_objects:
        _note(moved_note(seen.moved_objects))
    metadata = {"new_objects": seen.new_objects, "unread_objects": seen.unread_objects, "days": len(seen.days)}
    instance.report_runless_asset_event(dg.AssetObservation(asset_key=[recipe.workload, "logs"], metadata=metadata))
    earliest, latest = first_day(recipe, lake.root), recipe.last_day or datetime.now(UTC).date()
    if partition is None:
        days = [day for day in seen.days if earliest <= day <= latest]
        news = {*seen.unread_days, *_never_materialized(recipe, days, instance)}
        return [day for day in days if day in news] or days[-1:]
    if not earliest <= partition <= latest:
        raise SelectionError(f"--partition {partition}: this recipe's traffic is from {earliest} to {latest}")
    if not daily_partitions(recipe, lake.root).has_partition_key(partition.isoformat()):
        raise SelectionError(f"--partition {partition}: this day lies in a pause of more than a month, without any record")
    return [partition]


def _never_materialized(recipe: Recipe, days: list[date], instance: dg.DagsterInstance) -> set[date]:
    """Days without a materialization of some daily asset."""
    done = [
        instance.get_materialized_partitions(dg.AssetKey([recipe.workload, name])) for name in daily_stages(recipe.disabled)
    ]
    return {day for day in days if not all(day.isoformat() in partitions for partitions in done)}


def _execute(
    graph: dg.Definitions,
    job: str,
    keys: list[dg.AssetKey],
    instance: dg.DagsterInstance,
    lake: LakeLayout,
    tags: dict[str, str],
    request: RunRequest,
) -> bool:
    run_id = str(uuid.uuid4())
    listener = _Listener({key.path[-1] for key in keys}, lake, runs_of(lake) / request.id)
    instance.add_event_listener(run_id, listener)
    # execute_in_process hands no origin on; without one the UI's overview leaves the run out
    create: Any = partial(instance.create_run_for_job, remote_job_origin=origin_of(location_name(request.recipe), job))
    instance.create_run_for_job = create  # type: ignore[method-assign]
    all_tags = {**tags, PROCESS_TAG: this_process(), HOST_TAG: socket.gethostname(), RUN_TAG: request.id, **NOT_RETRIED}
    with failing_dead_runs(instance, _tell_dead):
        result = graph.resolve_job_def(job).execute_in_process(
            instance=instance, run_id=run_id, asset_selection=keys, tags=all_tags, raise_on_error=False
        )
    if listener.interrupted:
        ended = instance.get_run_by_id(run_id)
        if ended is not None and ended.status == dg.DagsterRunStatus.FAILURE:  # of the step that a worker stopped in
            instance.report_run_canceled(ended, message="stopped; `millrace run` goes on from what is finished")
        raise KeyboardInterrupt
    return result.success


class _Listener:
    def __init__(self, names: set[str], lake: LakeLayout, folder: Path | None = None):
        self.names, self.lake, self.folder = names, lake, folder
        self.interrupted = False
        self._waiting: set[str] = set()

    def __call__(self, entry: dg.EventLogEntry) -> None:
        event = entry.dagster_event
        if event is None:
            return
        step = (event.step_key or "").split("__")[-1]
        if event.event_type == dg.DagsterEventType.ENGINE_EVENT and "blocked by limit for pool" in (event.message or ""):
            self._waits(step)
        if event.event_type == dg.DagsterEventType.STEP_FAILURE:
            self._failed(step, event.event_specific_data.error, entry.timestamp)
        elif event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            relay(
                {
                    "event": "check",
                    "step": check.asset_key.path[-1],
                    "check": check.check_name,
                    "passed": check.passed,
                    "description": check.description or "",
                }
            )
        elif step in self.names and event.event_type in STATES:  # a check's step is reported with its result
            relay({"event": "step", "step": step, "state": STATES[event.event_type], "at": entry.timestamp})

    def _waits(self, step: str) -> None:
        if step not in self._waiting:
            self._waiting.add(step)
            others = others_running(self.folder) if self.folder is not None and self.folder.parent.is_dir() else []
            who = " and ".join(map(_at, others)) or "another run on this lake is at work"
            _note(f"{step} waits: {who}, and one step of its kind runs at a time")

    def _failed(self, step: str, error: StepError | None, at: float) -> None:
        if error is not None and error.cls_name == "DagsterAssetCheckFailedError":
            return  # the check's own event says which check, and why
        refused = storage_sentence(error, self.lake.root)
        while error is not None and error.cause is not None and (error.cls_name or "").startswith("Dagster"):
            error = error.cause  # Dagster's wrappers; the wrapped error has the message
        if error is not None and (error.cls_name in INTERRUPTIONS or DUCKDB_INTERRUPTED in error.message):
            self.interrupted = True
            relay({"event": "step", "step": step, "state": "stopped", "at": at})
            return
        message = refused or (error.message.strip().split(": ", 1)[-1] if error else "no reason given")
        killed = error is not None and error.cls_name == "WorkerKilled"
        relay({"event": "step", "step": step, "state": "failed", "at": at, "message": message, "killed": killed})


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # also if a shell started this in the background
    request = RunRequest.model_validate(json.loads(sys.argv[1]))
    with suppress(OSError):  # a full disk: the submitting process still sees the exit code
        write_json(request.folder / STARTED, {"process": this_process()})
    code = 1  # of an unexpected error, whose traceback is in the run's log
    try:
        code = _carried_out(request)
    except KeyboardInterrupt:  # it came when the work was done
        code = INTERRUPTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the process ends now
        with suppress(OSError):
            write_json(request.folder / EXIT, {"exit_code": code})
    return code


def _carried_out(request: RunRequest) -> int:
    try:
        return run(request)
    except (RecipeProblemsError, LakeError, SourceError, SelectionError) as error:
        relay({"event": "refused", "message": str(error)})
        return 2
    except S3Error as error:
        relay({"event": "refused", "message": str(error)})
        return 1
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        return INTERRUPTED
    except Exception as error:  # if Dagster cannot write its history, there is no failed step to report
        message = str(error) if isinstance(error, StorageError) else storage_sentence(error, request.lake)
        if message is None:
            raise
        relay({"event": "refused", "message": message})
        return 1


if __name__ == "__main__":
    end_process(main())
