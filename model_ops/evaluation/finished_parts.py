"""Finished parts of a report, saved under output/.work, so that a killed evaluation measures nothing twice."""

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from model_ops.drafting import AcceptanceRow
from model_ops.files import renamed_when_complete
from model_ops.jobs import Job


def finished(job: Job, name: str, measure_it: Callable[[], Any]) -> Any:
    """The result of `measure_it` as JSON values, cached together with the job's settings and inputs."""
    path, key = job.output / ".work" / f"{name}.json", part_key(job)
    if path.exists():
        part = json.loads(path.read_text())
        if part["key"] == key:
            return part["value"]
    value = measure_it()
    with renamed_when_complete(path) as temporary:
        temporary.write_text(json.dumps({"key": key, "value": value}))
    return value


def part_key(job: Job) -> list[Any]:
    """What a part depends on, as JSON values: the job's settings and inputs, and the columns of rows of acceptance."""
    columns = [field.name for field in fields(AcceptanceRow)]  # results of an older version are measured again
    inputs = {name: str(path) for name, path in sorted(job.inputs.items())}
    return json.loads(json.dumps([job.settings, inputs, columns]))
