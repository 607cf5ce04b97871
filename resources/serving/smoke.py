"""The smoke set of a release: prompts from held-out rows of its report's dataset, and scores by the target's own layers.

The layers run in a child process: this one never loads a model.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from model_ops.evaluation import Scores, SmokePrompt, schema_of
from model_ops.jobs import ModelError, size
from resources.composing import prompt_of
from resources.lake import LakeLayout
from resources.launching import child_environment, python_module
from resources.manifests import Input, ManifestError, read_manifest

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


def smoke_rows(lake: LakeLayout, directory: Path) -> SmokeRows:
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


def _test_rows(lake: LakeLayout, directory: Path) -> Path:
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
                    yield SmokePrompt(
                        str(row["row_id"]),
                        messages,
                        json.loads(row["tools"]) if row["tools"] else None,
                        json.loads(row["request"]) if row["request"] else {},
                    )


MOST_OF_FREE = 0.5
"""Share of the free memory that the target may take in float32."""
LONGEST_S = 900
NOT = "not compared with the target's own layers"


def own_layers(target: Path) -> Scores:
    """What it returns raises ModelError if the target does not fit beside its server, or cannot be scored."""

    def scores(answers: list[dict[str, Any]]) -> dict[str, Any]:
        needed, free = _float32_bytes(target), psutil.virtual_memory().available
        if needed > MOST_OF_FREE * free:
            raise ModelError(f"{NOT}: they may take {size(needed)}, and {size(free)} of memory are free")
        command = python_module("model_ops.evaluation.smoke.own_layers", str(target))
        try:
            done = subprocess.run(
                command,
                input=json.dumps(answers),
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
                env=child_environment(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""),
            )
            return json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired as error:
            raise ModelError(f"{NOT}: that took more than {LONGEST_S} s") from error
        except (ValueError, IndexError) as error:  # its output is not quoted: it may hold what was asked
            raise ModelError(f"{NOT}: their process ended with exit code {done.returncode}") from error

    return scores


def _float32_bytes(target: Path) -> int:
    """At most so many bytes: stored weights have two bytes or more, quantized ones one or a half."""
    stored = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    quantized = "quantization_config" in json.loads((target / "config.json").read_text())
    return stored * (8 if quantized else 2)
