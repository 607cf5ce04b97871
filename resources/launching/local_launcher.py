"""Runs workers on this machine, keeps one warm between steps, and asks for one more try of a run whose worker was killed.

A worker is `python -m model_ops.worker --stdin`: it pays for importing torch once, then takes one job after another.
A job whose settings have a mesh of several processes gets new processes, through torchrun (model_ops.parallel.launch); only
the first process reports events. A process that dies ends the job with its own error, unless the mesh's `restarts` allow all
processes to continue from the newest checkpoint.

In a Dagster step it reports through dagster-pipes. It writes progress as JSON lines, which are relayed to the terminal that
started the run (progress.py). Dagster's daemon retries no run whose step failed (dagster.yaml), since most would fail again;
a run whose worker was killed is started again once, from the failed step, which continues from its checkpoint."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import dagster as dg
from dagster import PipesTempFileContextInjector, PipesTempFileMessageReader, open_pipes_session
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, DAGSTER_PIPES_MESSAGES_ENV_VAR, encode_param

from model_ops.files import write_text
from model_ops.jobs import Job, counted
from model_ops.machine import pipe_of
from model_ops.parallel import MeshSettings
from resources.launching.processes import child_environment, killed_sentence, leased_devices, python_module
from resources.launching.progress import PhasePace, relay
from resources.manifests import SCRATCH


class Launcher(Protocol):
    """Runs jobs, one after another."""

    def run(self, job: Job, context: dg.AssetExecutionContext | None = None) -> dict[str, Any]:
        """Runs a job to its end and returns its metrics; its results are in `job.output`. Progress is reported to `context`.
        Raises WorkerError if the inputs are wrong or the worker dies, WorkerStopped if it was stopped: then its checkpoints are
        kept, and the same job continues from them."""
        ...

    def close(self) -> None:
        """Ends workers that wait for more jobs."""
        ...


class WorkerError(Exception):
    """A worker refused its inputs, or died. The message is the worker's."""


class WorkerKilled(WorkerError):
    """A worker was killed by a signal from outside."""


class WorkerStopped(Exception):
    """A worker saved its state and stopped because it was asked to."""


STOP_SECONDS = 120
"""Seconds that a worker may take to save its checkpoint after it was asked to stop."""
SECONDS_BETWEEN_LOG_LINES = 15
PIPES = {"context": DAGSTER_PIPES_CONTEXT_ENV_VAR, "messages": DAGSTER_PIPES_MESSAGES_ENV_VAR}
STARTING, LOADING = "starting the worker", "loading the model and its data"
"""The phase that is shown until the operation reports its own progress."""


class LocalLauncher:
    """Runs jobs on this machine, in one worker process that lives as long as the launcher."""

    def __init__(self, progress_file: Path | None = None, worker_log: Path | None = None):
        """worker_log: the file for the worker's stderr; None: this process's stderr."""
        self._progress_file, self._worker_log = progress_file, worker_log
        self._worker: subprocess.Popen[str] | None = None

    def __enter__(self) -> LocalLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, job: Job, context: dg.AssetExecutionContext | None = None) -> dict[str, Any]:
        """Runs a job and returns its metrics. Raises WorkerError when the inputs are wrong or the worker dies, WorkerStopped
        when it was stopped. If this process is interrupted, the worker gets time to save a checkpoint first. With
        MILLRACE_DEVICES, waits for devices that are free."""
        with leased_devices() as leased:
            try:
                return self._run(job, context)
            except WorkerKilled:
                ask_for_another_try(context)
                raise
            finally:
                if leased:
                    self.close()  # a warm worker would keep the devices' memory

    def _run(self, job: Job, context: dg.AssetExecutionContext | None) -> dict[str, Any]:
        job, processes = laid_out(job)
        path = job.output / SCRATCH / "job.json"
        write_text(path, job.model_dump_json(indent=2) + "\n")
        submit = self._submit if processes == 1 else partial(self._submit_to_processes, processes, job)
        if context is None:
            return submit(path, None, None)
        with open_pipes_session(
            context=context, context_injector=PipesTempFileContextInjector(), message_reader=PipesTempFileMessageReader()
        ) as session:
            parameters = session.get_bootstrap_params()
            pipes = {name: parameters[variable] for name, variable in PIPES.items()}
            return submit(path, pipes, context)

    def close(self) -> None:
        """Ends the worker: it finishes at end of input, and is killed if it does not."""
        if self._worker is None:
            return
        worker, self._worker = self._worker, None
        if worker.stdin is not None:
            worker.stdin.close()
        try:
            worker.wait(timeout=10)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        pipe_of(worker.stdout).close()

    def _submit(self, path: Path, pipes: dict[str, Any] | None, context: dg.AssetExecutionContext | None) -> dict:
        worker = self._living_worker()
        try:
            print(json.dumps({"job": str(path), "pipes": pipes}), file=worker.stdin, flush=True)
            for event in self._events(worker, context):
                if event["event"] == "result":
                    return event["metrics"]
                if event["event"] == "error":
                    raise WorkerError(event["message"])
                if event["event"] == "stopped":
                    raise WorkerStopped(f"{path.parent.parent.name}: stopped; run again to continue")
        except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
            self._stop()
            raise
        except BrokenPipeError:
            logging.getLogger(__name__).info("the worker ended before it could take %s", path)
        code = worker.wait()
        self._worker = None
        if code == 0:  # stopped by another process before it began
            raise WorkerStopped(f"{path.parent.parent.name}: stopped; run again to continue")
        if code < 0:
            raise WorkerKilled(killed_sentence("the worker", signal.Signals(-code).name))
        raise WorkerError(
            f"the worker ended with exit code {code} before its job was done; its checkpoints are kept, run again"
        )

    def _submit_to_processes(
        self, processes: int, job: Job, path: Path, pipes: dict[str, Any] | None, context: dg.AssetExecutionContext | None
    ) -> dict:
        self.close()  # a warm worker would keep device memory
        self._waits_for(f"starting {processes} processes")
        environment = {**self._environment(), "OMP_NUM_THREADS": str(max(1, job.threads // processes))}
        if pipes is not None:
            environment |= {variable: encode_param(pipes[name]) for name, variable in PIPES.items()}
        how = ("--processes", str(processes), "--restarts", str(_mesh(job).restarts))
        worker = self._start(python_module("model_ops.parallel.launch", str(path), *how), environment)
        self._worker = worker
        ends: dict[str, dict] = {}
        try:
            for event in self._events(worker, context):
                ends.setdefault(event["event"], event)
                if event["event"] == "restarted":
                    ends.clear()  # the reports of earlier processes about their end
            code = worker.wait()
        except BaseException:  # if this block ends, the processes end
            self._stop()
            raise
        self._worker = None
        pipe_of(worker.stdout).close()
        if "result" in ends:
            return ends["result"]["metrics"]
        if "stopped" in ends:
            raise WorkerStopped(f"{path.parent.parent.name}: stopped; run again to continue")
        if "died" in ends:  # the other processes only report that it is gone
            who = f"process {ends['died']['rank']} of {processes}"
            raise WorkerKilled(killed_sentence(who, ends["died"]["signal"]))
        if "error" in ends:
            raise WorkerError(ends["error"]["message"])
        raise WorkerError(
            f"the {processes} processes ended with exit code {code} before their job was done; "
            "its checkpoints are kept, run again"
        )

    def _waits_for(self, phase: str) -> None:
        """Shows the terminal what happens before the first progress event."""
        relay({"event": "phase", "phase": phase}, self._progress_file)

    def _environment(self) -> dict[str, str]:
        return child_environment(TOKENIZERS_PARALLELISM="true", MPLBACKEND="Agg")

    def _start(self, command: list[str], environment: dict[str, str], stdin: int | None = None) -> subprocess.Popen[str]:
        with ExitStack() as stack:
            if self._worker_log is not None:
                self._worker_log.parent.mkdir(parents=True, exist_ok=True)
            stderr = stack.enter_context(self._worker_log.open("a")) if self._worker_log is not None else None
            # A session of its own: Ctrl-C reaches the run, which then stops the worker in order.
            return subprocess.Popen(
                command, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
            )

    def _living_worker(self) -> subprocess.Popen[str]:
        if self._worker is not None and self._worker.poll() is None:
            self._waits_for(LOADING)
            return self._worker
        self._waits_for(STARTING)
        self._worker = self._start(python_module("model_ops.worker", "--stdin"), self._environment(), subprocess.PIPE)
        return self._worker

    def _events(self, worker: subprocess.Popen[str], context: dg.AssetExecutionContext | None) -> Iterator[dict]:
        logged_at, pace = time.monotonic(), PhasePace()
        for line in pipe_of(worker.stdout):
            event = json.loads(line)
            if event["event"] == "progress":
                event["at"] = time.time()
                pace.hear(event)
                relay(event, self._progress_file)
                if context is not None and time.monotonic() - logged_at > SECONDS_BETWEEN_LOG_LINES:
                    logged_at = time.monotonic()
                    context.log.info(pace.sentence())
            elif event["event"] == "ready":
                self._waits_for(LOADING)
            elif event["event"] in ("note", "warning"):
                relay(event, self._progress_file)
                if context is not None:
                    (context.log.warning if event["event"] == "warning" else context.log.info)(event["message"])
            yield event

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None or worker.poll() is not None:
            return
        worker.send_signal(signal.SIGTERM)
        try:
            worker.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _mesh(job: Job) -> MeshSettings:
    return MeshSettings.model_validate(job.settings.get("mesh") or {})


def laid_out(job: Job) -> tuple[Job, int]:
    """The job with resolved mesh sizes, and its number of processes. Raises WorkerError for a mesh that this machine is too
    small for."""
    mesh = _mesh(job)
    devices = accelerators()
    try:
        mesh = mesh.resolved(devices)
    except ValueError as error:
        raise WorkerError(f"{job.operation}: {error}") from error
    processes = mesh.processes or 1
    if 0 < devices < processes:
        raise WorkerError(
            f"{job.operation}: the mesh is of {processes} processes and this machine has "
            f"{counted(devices, 'accelerator')}: make the mesh smaller"
        )
    if processes == 1:
        return job, 1
    settings = {**job.settings, "mesh": mesh.model_dump(mode="json")}
    return job.model_copy(update={"settings": settings}), processes


def accelerators() -> int:
    """Number of CUDA devices that a worker would see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    installed = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if visible is None:
        return installed
    return min(installed, len([device for device in visible.split(",") if device.strip() not in ("", "-1")]))


ONCE = {"dagster/retry_on_asset_or_op_failure": "true", "dagster/max_retries": "1"}


def ask_for_another_try(context: dg.AssetExecutionContext | None) -> None:
    """Marks the run for one retry, if the daemon launched it. A run of `millrace run` is continued by the next one."""
    if context is not None and is_launched(context.run):
        context.instance.add_run_tags(context.run_id, ONCE)


def origin_of(location: str, job: str) -> RemoteJobOrigin:
    """The origin of a run of the command line, by the name of its recipe's code location; Dagster tags the run after it."""
    return RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__").get_job_origin(job)


def is_launched(run: dg.DagsterRun) -> bool:
    """Whether the daemon launched a run, from a code location that it has loaded."""
    origin = run.remote_job_origin
    return origin is not None and not isinstance(origin.repository_origin.code_location_origin, RegisteredCodeLocationOrigin)
