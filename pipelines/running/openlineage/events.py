"""OpenLineage run events (specification 2-0-2), as JSON values.

    step = StepRun(namespace="millrace", job="shop/sft_dataset", run_id=..., parent_run=..., parent_job="shop/train")
    event("COMPLETE", step, at, inputs=[dataset], outputs=[dataset])

Datasets are named as the specification names files and objects: namespace `file` and a path, or `s3://bucket` and a key.
Facets: schema, columnLineage, version, and the number of rows and bytes of an output; on a run its parent, and the message of
an error. Nothing of a row's content is in an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

PRODUCER = "https://pypi.org/project/millrace"
_SPEC = "https://openlineage.io/spec"

State = Literal["START", "COMPLETE", "FAIL", "ABORT"]
Columns = Mapping[str, Sequence[tuple[str, str]]]
"""Output column -> (path of the input dataset, its column) of everything that its values are made from."""


@dataclass(frozen=True)
class StepRun:
    """One run of one step."""

    namespace: str
    job: str
    run_id: str
    parent_run: str
    """`run_id`, `parent_run`: UUIDs."""
    parent_job: str


@dataclass(frozen=True)
class Dataset:
    """A table, an artefact or log files."""

    path: str
    """Path or URI."""
    version: str = ""
    schema: Mapping[str, str] = field(default_factory=dict)
    """Type by column."""
    columns: Columns = field(default_factory=dict)
    rows: int | None = None
    size: int | None = None
    """`rows`, `size`: of an output, if known."""


def event(
    state: State, step: StepRun, at: datetime, inputs: Sequence[Dataset] = (), outputs: Sequence[Dataset] = (), error: str = ""
) -> dict[str, Any]:
    """A run event. at: with a time zone. error: a sentence, of a step that failed."""
    parent = {"run": {"runId": step.parent_run}, "job": {"namespace": step.namespace, "name": step.parent_job}}
    facets = {"parent": _facet("1-1-0", "ParentRunFacet", parent)}
    if error:
        said = {"message": error, "programmingLanguage": "Python"}
        facets["errorMessage"] = _facet("1-0-1", "ErrorMessageRunFacet", said)
    return {
        "eventType": state,
        "eventTime": at.isoformat(),
        "producer": PRODUCER,
        "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": step.run_id, "facets": facets},
        "job": {
            "namespace": step.namespace,
            "name": step.job,
            "facets": {
                "jobType": _facet(
                    "2-0-3", "JobTypeJobFacet", {"processingType": "BATCH", "integration": "MILLRACE", "jobType": "STEP"}
                )
            },
        },
        "inputs": [_named(dataset) | {"inputFacets": {}} for dataset in inputs],
        "outputs": [_named(dataset) | {"outputFacets": _written(dataset)} for dataset in outputs],
    }


def _named(dataset: Dataset) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    if dataset.schema:
        listed = [{"name": name, "type": kind} for name, kind in dataset.schema.items()]
        facets["schema"] = _facet("1-1-1", "SchemaDatasetFacet", {"fields": listed})
    if dataset.version:
        facets["version"] = _facet("1-0-1", "DatasetVersionDatasetFacet", {"datasetVersion": dataset.version})
    if dataset.columns:
        fields = {
            column: {"inputFields": [_place(path) | {"field": name} for path, name in sources]}
            for column, sources in dataset.columns.items()
        }
        facets["columnLineage"] = _facet("1-2-0", "ColumnLineageDatasetFacet", {"fields": fields})
    return {**_place(dataset.path), "facets": facets}


def _place(path: str) -> dict[str, str]:
    """Namespace and name of a path or uri."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return {"namespace": "file", "name": rest or path}
    authority, _, name = rest.partition("/")
    return {"namespace": f"{scheme}://{authority}", "name": name or "/"}


def _written(dataset: Dataset) -> dict[str, Any]:
    found = {name: value for name, value in (("rowCount", dataset.rows), ("size", dataset.size)) if value is not None}
    return {"outputStatistics": _facet("1-0-2", "OutputStatisticsOutputDatasetFacet", found)} if found else {}


def _facet(version: str, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    url = f"{_SPEC}/facets/{version}/{name}.json#/$defs/{name}"
    return {"_producer": PRODUCER, "_schemaURL": url, **content}
