"""Sends training metrics from metrics.jsonl to TensorBoard, Weights & Biases or MLflow.

A thread follows the file while the worker writes it and sends each step once. After a kill, earlier steps are sent again into
an empty folder (TensorBoard), under the run's own id (W&B), or to a run that replaces the earlier one (MLflow). If a tracker
fails, it logs the error and stops; training continues."""

import importlib.util
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

TrackingKind = Literal["none", "tensorboard", "wandb", "mlflow"]
SECONDS_BETWEEN_LOOKS = 1.0


class Tracker(Protocol):
    """A service that takes the numbers of each step."""

    def log(self, step: int, numbers: dict[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in folder/name, written without torch."""

    def __init__(self, folder: Path, name: str):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(folder / name, ignore_errors=True)
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder / name))

    def log(self, step: int, numbers: dict[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=self._summary(value=values)))

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of W&B, configured by its own environment variables (WANDB_PROJECT, WANDB_MODE, ...)."""

    def __init__(self, folder: Path, name: str):
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(id=name.replace("/", "-"), name=name, dir=str(folder), resume="allow")

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI in the experiment MLFLOW_EXPERIMENT_NAME; without one, in the workload's."""

    def __init__(self, folder: Path, name: str):
        import mlflow

        self._client = client = mlflow.MlflowClient()
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", name.partition("/")[0])
        known = client.get_experiment_by_name(wanted)
        experiment = known.experiment_id if known else client.create_experiment(wanted)
        for earlier in client.search_runs([experiment], f"attributes.run_name = '{name}'"):
            client.delete_run(earlier.info.run_id)
        self._run = client.create_run(experiment, run_name=name).info.run_id

    def log(self, step: int, numbers: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now_ms, step) for name, value in numbers.items()])

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKERS: dict[TrackingKind, Callable[[Path, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def missing_package(kind: TrackingKind) -> str | None:
    """The package that a kind of tracking needs and that is not installed."""
    return kind if kind != "none" and importlib.util.find_spec(kind) is None else None


@contextmanager
def tracked(metrics: Path, kind: TrackingKind, folder: Path, name: str) -> Iterator[None]:
    """Follows `metrics` while the block runs; sends the remaining steps before it ends."""
    if kind == "none":
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_follow, args=(metrics, kind, folder, name, done), name=f"tracking {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=30)


def _follow(metrics: Path, kind: TrackingKind, folder: Path, name: str, done: threading.Event) -> None:
    sent: set[tuple[str, int]] = set()
    tracker: Tracker | None = None
    try:
        while True:
            last = done.wait(SECONDS_BETWEEN_LOOKS)
            for record in _records(metrics):
                key = (record["phase"], record["step"])
                if key in sent:
                    continue
                if tracker is None:
                    tracker = TRACKERS[kind](folder, name)
                values = {name: each for name, each in record.items() if isinstance(each, int | float) and name != "step"}
                tracker.log(record["step"], {f"{record['phase']}/{name}": float(each) for name, each in values.items()})
                sent.add(key)
            if last:
                break
    except Exception as error:  # a third-party service: training continues without it
        logging.getLogger(__name__).warning("tracking with %s ended: %s: %s", kind, type(error).__name__, error)
    finally:
        if tracker is not None:
            tracker.close()


def _records(metrics: Path) -> list[dict[str, Any]]:
    if not metrics.exists():
        return []
    records = []
    for line in metrics.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:  # a line that is not finished yet
            break
    return records
