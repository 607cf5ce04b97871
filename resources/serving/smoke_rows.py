"""Prompts for the smoke set of a release: held-out rows of the dataset that its report was measured on.

    rows = smoke_rows(lake, directory)
    rows.prompts, rows.with_schema         # empty lists where the dataset is gone; rows.missing says why
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.evaluation.smoke.asking import SmokePrompt
from model_ops.evaluation.smoke.constraints import schema_of
from resources.artefacts.manifest import Input, ManifestError, read_manifest
from resources.lake import Lake
from resources.teaching.requests import prompt_of

PROMPTS, SCHEMA_ROWS = 12, 4
MOST_CHARACTERS = 4_000
"""Longer prompts are left out: the set has a long prompt of its own."""
MOST_READ = 2_000
COLUMNS = ("row_id", "messages", "tools", "request")


@dataclass(frozen=True)
class SmokeRows:
    """with_schema: rows whose request asked for a JSON schema. missing: why there is no prompt; "" if there is one."""

    prompts: list[SmokePrompt]
    with_schema: list[SmokePrompt]
    missing: str


def smoke_rows(lake: Lake, directory: Path) -> SmokeRows:
    """Up to PROMPTS prompts, and up to SCHEMA_ROWS with a schema."""
    prompts: list[SmokePrompt] = []
    with_schema: list[SmokePrompt] = []
    try:
        for number, prompt in enumerate(_prompts(_test_rows(lake, directory))):
            if len(prompts) < PROMPTS:
                prompts.append(prompt)
            if schema_of(prompt) is not None and len(with_schema) < SCHEMA_ROWS:
                with_schema.append(prompt)
            if number == MOST_READ or (len(prompts) == PROMPTS and len(with_schema) == SCHEMA_ROWS):
                break
    except (ManifestError, OSError, pa.ArrowException) as error:
        return SmokeRows([], [], f"no held-out row was asked: {' '.join(str(error).split())}")
    return SmokeRows(prompts, with_schema, "" if prompts else "no held-out row is short enough to be asked")


def _test_rows(lake: Lake, directory: Path) -> Path:
    """The test rows of the dataset behind the release's report. Raises ManifestError if one of them is gone."""
    report = _input(read_manifest(directory).inputs, "evaluation_report")
    dataset = _input(read_manifest(lake.artefacts(report.kind) / report.name / report.version).inputs, "sft_dataset")
    path = lake.artefacts(dataset.kind) / dataset.name / dataset.version / "test.parquet"
    lake.mirror.fetch_files([path])
    return path


def _input(inputs: list[Input], name: str) -> Input:
    for item in inputs:
        if item.kind == "dataset" and item.name.endswith(f"/{name}"):
            return item
    raise ManifestError(f"the release names no {name}")


def _prompts(path: Path) -> Iterator[SmokePrompt]:
    with pq.ParquetFile(path) as file:
        columns = [name for name in COLUMNS if name in file.schema_arrow.names]
        for batch in file.iter_batches(256, columns=columns):
            for row in batch.to_pylist():
                row = {name: row.get(name) for name in COLUMNS}
                messages = prompt_of(row)
                if messages and sum(len(str(said.get("content") or "")) for said in messages) <= MOST_CHARACTERS:
                    yield SmokePrompt(str(row["row_id"]), messages, json.loads(row["tools"]) if row["tools"] else None,
                                      json.loads(row["request"]) if row["request"] else {})
