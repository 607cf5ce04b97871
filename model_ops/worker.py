"""The worker process: runs jobs and reports their progress as JSON lines.

    python -m model_ops.worker JOB.json   one Job (model_ops.jobs.job)
    python -m model_ops.worker --stdin    one JSON line per job, {"job": "JOB.json", "pipes": {...} or null}; keeps running
    torchrun --nproc-per-node 4 -m model_ops.worker JOB.json    one job in several processes; the first one reports

stdout carries JSON lines only, one of: ready, progress, result (job, metrics), error (job, kind, message), stopped (job).
Tracebacks and output of libraries go to stderr. On SIGTERM or SIGINT the operation saves a checkpoint, `stopped` is written
and the process exits with 0. After an error, a single job exits with 1, and --stdin reads the next line.

`pipes` holds the context and messages parameters of Dagster Pipes, as values or encoded as in its environment variables.
With it, the metrics also go to the Dagster run as a custom message. A single job reads these parameters from the environment.

Of several processes only the first reports progress. The process that fails writes `error` with its rank and reports it to
torchrun, before processes that fail because they lost it."""

import argparse
import importlib
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.machine import give_back_memory, keep_freed_memory, set_torch_environment
from model_ops.operations import OPERATIONS
from model_ops.parallel import local_threads, process_group, rank, report_failure, started_by_torchrun


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model_ops.worker", description="Runs model_ops jobs.")
    parser.add_argument("job", nargs="?", type=Path, help="a job file (model_ops.jobs.job.Job as JSON)")
    parser.add_argument("--stdin", action="store_true", help="read one job per line from standard input")
    given = parser.parse_args(arguments)
    if given.stdin == (given.job is not None):
        parser.error("give a job file, or --stdin")
    set_torch_environment()
    events = _own_stdout()
    progress = Progress(events if rank() == 0 else None)
    progress.install_signal_handlers()
    keep_freed_memory()
    if not given.stdin:
        progress.event("ready")
        return carry_out(given.job, _pipes_of_environment() if rank() == 0 else None, progress, Progress(events))
    _import_heavy_libraries()
    progress.event("ready")
    for line in _lines(0, progress):
        try:
            request = json.loads(line)
            job, pipes = Path(request["job"]), request.get("pipes")
        except (ValueError, KeyError, TypeError) as error:
            message = f'a line of standard input is not {{"job": path, "pipes": ...}} ({type(error).__name__})'
            progress.event("error", job=None, kind="JobError", message=message)
            continue
        carry_out(job, pipes, progress)
        if progress.stop_requested:
            break
    return 0


def carry_out(path: Path, pipes: dict[str, Any] | None, progress: Progress, errors: Progress | None = None) -> int:
    """Runs one job and returns its exit code. progress: the stream of events. errors: the stream of error events, also for
    processes that report no progress."""
    name = str(path)
    try:
        job = Job.model_validate_json(path.read_text())
        if job.operation not in OPERATIONS:
            raise ModelError(f"{path}: unknown operation {job.operation!r}; known: {', '.join(OPERATIONS)}")
        import torch

        torch.set_num_threads(local_threads(job.threads))
        job.output.mkdir(parents=True, exist_ok=True)
        from model_ops.parallel import run_precision

        operation = importlib.import_module(f"model_ops.operations.{job.operation}")
        with process_group(), run_precision(job.output / ".work", progress) as used:
            metrics = operation.run(job, progress)
        metrics = used | metrics
        if pipes is not None:
            _report_to_dagster(pipes, {"operation": job.operation, "output": str(job.output), "metrics": metrics})
    except Stopped:
        progress.event("stopped", job=name)
        return 0
    except Exception as error:  # the process boundary: any error becomes one event, and its traceback goes to stderr
        traceback.print_exc(file=sys.stderr)
        own = report_failure(error, lambda: progress.stop_requested)
        where = {"rank": rank()} if started_by_torchrun() else {}
        kind, message = type(error).__name__, _sentence(path, error)
        if not own:
            kind, message = "LostProcess", "another process of this run ended; see its own error"
        (errors or progress).event("error", job=name, kind=kind, message=message, **where)
        return 1
    finally:
        give_back_memory()
    progress.event("result", job=name, metrics=metrics)
    return 0


def _sentence(path: Path, error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        return f"{path}: field {where or '(whole file)'}: {problem['msg']}"
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _own_stdout() -> TextIO:
    """The real stdout for events; from now on all other output to stdout, also of C code, goes to stderr."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    sys.stdout.flush()
    os.dup2(2, 1)
    return events


def _lines(descriptor: int, progress: Progress):
    """Lines of standard input, until its end or until a stop is requested while waiting."""
    import select

    buffered = b""
    while not progress.stop_requested:
        line, newline, rest = buffered.partition(b"\n")
        if newline:
            buffered = rest
            if line.strip():
                yield line.decode()
            continue
        if not select.select([descriptor], [], [], 0.2)[0]:
            continue
        chunk = os.read(descriptor, io.DEFAULT_BUFFER_SIZE)
        if not chunk:
            if buffered.strip():
                yield buffered.decode()
            return
        buffered += chunk


def _import_heavy_libraries() -> None:
    """Imports torch and transformers before the first job arrives."""
    importlib.import_module("model_ops.operations.sft")


def _pipes_of_environment() -> dict[str, str] | None:
    """Parameters of Dagster Pipes from the environment; None if they are not set."""
    names = {"context": "DAGSTER_PIPES_CONTEXT", "messages": "DAGSTER_PIPES_MESSAGES"}
    parameters = {key: os.environ[name] for key, name in names.items() if name in os.environ}
    return parameters if len(parameters) == len(names) else None


def _report_to_dagster(pipes: dict[str, Any], message: dict[str, Any]) -> None:
    """Sends metrics to the Dagster run. Each job opens its own Pipes session, because the library's global one serves one
    session only."""
    from dagster_pipes import (
        PipesContext,
        PipesDefaultContextLoader,
        PipesDefaultMessageWriter,
        PipesMappingParamsLoader,
        encode_param,
    )

    encoded = {name: value if isinstance(value, str) else encode_param(value) for name, value in pipes.items()}
    parameters = PipesMappingParamsLoader(
        {"DAGSTER_PIPES_CONTEXT": encoded["context"], "DAGSTER_PIPES_MESSAGES": encoded["messages"]}
    )
    with PipesContext(parameters, PipesDefaultContextLoader(), PipesDefaultMessageWriter()) as context:
        context.report_custom_message(message)


if __name__ == "__main__":
    sys.exit(main())
