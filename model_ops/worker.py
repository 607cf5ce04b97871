"""The process in which weights change.

    python -m model_ops.worker JOB.json   one Job (model_ops.job)
    python -m model_ops.worker --stdin    one JSON line per job, {"job": "JOB.json", "pipes": {...} or null}; stays warm
    torchrun --nproc-per-node 4 -m model_ops.worker JOB.json    one job over several processes; the first of them reports

stdout carries JSON lines only, one of: ready, progress, result (job, metrics), error (job, kind, message), stopped
(job). Tracebacks and what libraries print go to stderr. SIGTERM or SIGINT: the operation saves what lets it continue,
`stopped` is written and the process ends with 0. An error ends a single job with 1; with --stdin the next line is
read. `pipes` holds Dagster Pipes' context and messages parameters (as values, or encoded as in its environment
variables): the metrics are then also sent as a custom message to the run that asked. A single job finds them in those
variables. Of several processes only the first reports; an `error` is written by whichever process has it, with its rank,
and told to torchrun, before those of processes that only lost it.
"""

from __future__ import annotations

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

from model_ops.errors import ModelError
from model_ops.heap import give_back_memory, keep_freed_memory
from model_ops.job import Job
from model_ops.operations.table import OPERATIONS
from model_ops.parallel.processes import local_threads, process_group, rank, report_failure, started_by_torchrun
from model_ops.progress import Progress, Stopped
from model_ops.torch_environment import set_torch_environment


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model_ops.worker", description="Carries out model_ops jobs.")
    parser.add_argument("job", nargs="?", type=Path, help="a job file (model_ops.job.Job as JSON)")
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
    """One job: its events on the progress stream, its exit code returned. `errors` is where an error goes: processes
    that do not report still say what went wrong with them."""
    name = str(path)
    try:
        job = Job.model_validate_json(path.read_text())
        if job.operation not in OPERATIONS:
            raise ModelError(f"{path}: unknown operation {job.operation!r}; known: {', '.join(OPERATIONS)}")
        import torch

        torch.set_num_threads(local_threads(job.threads))
        job.output.mkdir(parents=True, exist_ok=True)
        operation = importlib.import_module(f"model_ops.operations.{job.operation}")
        with process_group():
            metrics = operation.run(job, progress)
        if pipes is not None:
            _report_to_dagster(pipes, {"operation": job.operation, "output": str(job.output), "metrics": metrics})
    except Stopped:
        progress.event("stopped", job=name)
        return 0
    except Exception as error:  # the process boundary: whatever it is becomes one event, its traceback goes to stderr
        traceback.print_exc(file=sys.stderr)
        own = report_failure(error, lambda: progress.stop_requested)
        where = {"rank": rank()} if started_by_torchrun() else {}
        kind, message = type(error).__name__, _sentence(path, error)
        if not own:
            kind, message = "LostProcess", "another process of this run is gone; its own error says why"
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
    """The real stdout for events; whatever else writes to stdout from now on, C code included, reaches stderr."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    sys.stdout.flush()
    os.dup2(2, 1)
    return events


def _lines(descriptor: int, progress: Progress):
    """Lines of standard input; ends at its end, or when a stop is requested while waiting for the next one."""
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
    """Paid once, before the first job arrives."""
    importlib.import_module("model_ops.operations.sft")


def _pipes_of_environment() -> dict[str, str] | None:
    """Dagster Pipes' parameters where the process was started with them."""
    names = {"context": "DAGSTER_PIPES_CONTEXT", "messages": "DAGSTER_PIPES_MESSAGES"}
    found = {key: os.environ[name] for key, name in names.items() if name in os.environ}
    return found if len(found) == len(names) else None


def _report_to_dagster(pipes: dict[str, Any], message: dict[str, Any]) -> None:
    """Each job has a Dagster Pipes session of its own; the library's process-wide one is for a single session."""
    from dagster_pipes import (
        PipesContext,
        PipesDefaultContextLoader,
        PipesDefaultMessageWriter,
        PipesMappingParamsLoader,
        encode_param,
    )

    encoded = {name: value if isinstance(value, str) else encode_param(value) for name, value in pipes.items()}
    parameters = PipesMappingParamsLoader(
        {"DAGSTER_PIPES_CONTEXT": encoded["context"], "DAGSTER_PIPES_MESSAGES": encoded["messages"]})
    with PipesContext(parameters, PipesDefaultContextLoader(), PipesDefaultMessageWriter()) as context:
        context.report_custom_message(message)


if __name__ == "__main__":
    sys.exit(main())
