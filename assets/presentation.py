"""Dagster metadata of an artefact: numbers, small tables, plots, the path.

return shown(manifest, workshop)        # a MaterializeResult"""

import base64
import io
import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from assets.questions import about_artefact, as_metadata
from assets.stories import in_short
from resources.catalog import columns_of, comment_on
from resources.lake import workbench
from resources.launching import relay
from resources.manifests import Manifest, erased
from resources.records import visible
from resources.reporting import DiffError, column_statistics, compare_versions, files_relation, rows_without_texts
from resources.workshop import Workshop


def tell_shortages(context: dg.AssetExecutionContext, manifest: Manifest) -> None:
    """One line: the wishes that the rows do not fulfil and, of a mixture, the rows that it has instead."""
    if not manifest.metrics["notes"]:
        return
    name, sources = manifest.name.rpartition("/")[2], manifest.metrics.get("sources", {})
    total = sum(sources.values())
    instead = ", ".join(f"{source} {count:,} ({count / total:z.0%})" for source, count in sorted(sources.items()))
    message = f"{name}: {'; '.join(manifest.metrics['notes'])}{'; its training rows are ' + instead if instead else ''}"
    context.log.warning(message)
    relay({"event": "note", "message": message})


COMPARES = "compares"
"""Metadata of an asset check: the model whose measurement it compares. Without that stage the check is not in the graph."""

OF_ONE_RUN = ("seconds", "tokens_per_second", "peak_memory", "resumed_from")
"""Prefixes of metrics that describe a run, not its result."""


def shown(manifest: Manifest, workshop: Workshop, first: Mapping[str, Any] | None = None, **more: Any) -> dg.MaterializeResult:
    """The materialization of an artefact: its digest as the data version, metrics, tables and plots. first: what the asset's
    page begins with after its story (stories.py), instead of metrics of the same names."""
    directory = workshop.directory(manifest)
    has_curves = any(file.path == "metrics.jsonl" for file in manifest.files)
    metadata: dict[str, Any] = {
        **in_short(manifest, directory),
        **(first or {}),
        **({"training_curves": embedded(training_curves(directory / "metrics.jsonl"), "training")} if has_curves else {}),
        "path": dg.MetadataValue.path(str(directory)),
        "version": manifest.version,
        "size_mb": round(sum(file.bytes for file in manifest.files) / 1e6, 3),
        "made_from": dg.MetadataValue.md(_inputs_table(manifest)),
        "sql": as_metadata(about_artefact(manifest)),
        **_when(manifest, workshop, first or {}),
        **more,
    }
    metadata |= column_lineage(manifest.name)
    first_table = next((file.path for file in manifest.files if file.path.endswith(".parquet")), None)
    if first_table:
        own_name = manifest.name.rpartition("/")[2]
        counted_rows = _counted_rows(manifest, directory)
        if counted_rows:  # a page with columns shows them before the rest; several kinds of files share none
            metadata["dagster/column_schema"] = column_schema(pq.read_schema(directory / first_table), own_name)
        metadata |= _described_files(manifest, directory) | counted_rows
    for file in manifest.files:
        if file.path == "rendered.md":
            metadata["what_is_learnt"] = dg.MetadataValue.md(visible((directory / file.path).read_text(), lines=True))
        if file.path.endswith(".html"):
            metadata.setdefault(Path(file.path).stem, dg.MetadataValue.path(str(directory / file.path)))
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(manifest.digest))


def _described_files(manifest: Manifest, directory: Path) -> dict[str, Any]:
    """Statistics and preview of a dataset, over its splits together or, where it has none, its first file."""
    files = [directory / file.path for file in manifest.files if file.path.endswith(".parquet")]
    if manifest.kind != "dataset":
        return {}
    splits = [file for file in files if file.stem in erased.SPLITS]
    with suppress(duckdb.Error), workbench() as connection:  # a file that cannot be read is for `millrace verify` to name
        return described(connection, files_relation(splits or files[:1]))
    return {}


def _counted_rows(manifest: Manifest, directory: Path) -> dict[str, Any]:
    """Rows of a dataset's splits, from the footers of their files; nothing for files of several kinds."""
    splits = [directory / file.path for file in manifest.files if Path(file.path).stem in erased.SPLITS]
    files = splits or [directory / file.path for file in manifest.files if file.path.endswith(".parquet")]
    if manifest.kind != "dataset" or not (splits or len(files) == 1):
        return {}
    with suppress(pa.ArrowInvalid, OSError):
        return {"dagster/row_count": sum(pq.read_metadata(file).num_rows for file in files)}
    return {}


def described(connection: duckdb.DuckDBPyConnection, query: str, hidden: Collection[str] = ()) -> dict[str, Any]:
    """Statistics of a query's columns and a few of its rows, both without texts of users: Dagster's event log keeps them.
    hidden: columns that the preview leaves out."""
    return {
        "preview": table(rows_without_texts(connection, query, hidden)),
        "column_statistics": table(column_statistics(connection, query, with_texts=False)[1]),
    }


def _when(manifest: Manifest, workshop: Workshop, shown_before: Collection[str]) -> dict[str, Any]:
    """The artefact's metrics except those shown elsewhere; for a reused artefact, without those of the run that made it."""
    shown_metrics = numbers({name: value for name, value in manifest.metrics.items() if name not in shown_before})
    if not workshop.is_reused(manifest):
        return {"reused": False, **shown_metrics}
    maker = {"made_by_run": dg.MetadataValue.dagster_run(manifest.run_id)} if manifest.run_id else {}
    return {
        "reused": True,
        "made_at": dg.MetadataValue.timestamp(manifest.created_at),
        **maker,
        **{name: value for name, value in shown_metrics.items() if not name.rpartition("/")[2].startswith(OF_ONE_RUN)},
    }


def changes(manifest: Manifest, workshop: Workshop) -> dict[str, dg.MetadataValue]:
    """How a dataset differs from the version that was made before it; nothing for the first version."""
    try:
        difference = compare_versions(workshop.lake, manifest.name, new=manifest.version)
    except DiffError:
        return {}
    return {f"changes_since_{difference.old}": table(difference.changes.to_pylist())}


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested metrics as flat metadata: one key per number or short text; lists are left to the report."""
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(numbers(value, f"{key}/"))
        elif isinstance(value, bool | int | float | str):
            flat[key] = (
                round(float(f"{value:.5g}"), 5) if isinstance(value, float) and math.isfinite(value) else value
            )  # five digits
    return flat


def table(rows: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    """A few rows as a table that the UI can sort: numbers as numbers, missing values empty."""
    import polars as pl

    frame = pl.DataFrame(list(rows), infer_schema_length=None)
    if frame.is_empty():
        return dg.MetadataValue.md("(none)")
    kinds = {bool: "bool", int: "int", float: "float"}
    columns = [dg.TableColumn(name, kinds.get(dtype.to_python(), "string")) for name, dtype in frame.schema.items()]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in frame.to_dicts()], dg.TableSchema(columns))


def embedded(picture: bytes, title: str) -> dg.MetadataValue:
    """A PNG embedded in the event, so that the UI shows it on any machine."""
    return dg.MetadataValue.md(f"![{title}](data:image/png;base64,{base64.b64encode(picture).decode()})")


def training_curves(metrics: Path) -> bytes:
    """A PNG of loss (and validation loss, if measured), learning rate and tokens/s by step."""
    from matplotlib.figure import Figure

    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    figure = Figure(figsize=(6, 5), dpi=90, layout="constrained")
    loss, rate, speed = figure.subplots(3, sharex=True, height_ratios=(3, 1, 1))
    for axes, name, label in (
        (loss, "loss", "loss"),
        (rate, "learning_rate", "learning rate"),
        (speed, "tokens_per_second", "tokens/s"),
    ):
        said = [step for step in steps if step.get(name) is not None]
        axes.plot([step["step"] for step in said], [step[name] for step in said], linewidth=1, label="training")
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    validated = [step for step in steps if "validation_loss" in step]
    if validated:
        points = [step["step"] for step in validated], [step["validation_loss"] for step in validated]
        loss.plot(*points, marker="o", label="validation")
        loss.legend(frameon=False)
    rate.ticklabel_format(axis="y", scilimits=(-2, 2))
    speed.set_ylim(bottom=0)
    speed.set_xlabel("step")
    figure.align_ylabels()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def column_schema(schema: pa.Schema, relation: str) -> dg.TableSchema:
    """The columns of a table or dataset, each with what it means. relation: its name, without the workload."""
    return dg.TableSchema([dg.TableColumn(field.name, str(field.type), comment_on(relation, field.name)) for field in schema])


def column_lineage(name: str) -> dict[str, dg.TableColumnLineage]:
    """Metadata that says which columns each column of a table or dataset is made from. name: workload/name."""
    workload, last = name.split("/", 1)
    deps = {
        column: [dg.TableColumnDep(asset_key=dg.AssetKey([workload, source]), column_name=field) for source, field in sources]
        for column, sources in columns_of(last).items()
    }
    return {"dagster/column_lineage": dg.TableColumnLineage(deps_by_column=deps)} if deps else {}


def _inputs_table(manifest: Manifest) -> str:
    lines = [f"- {item.kind} **{item.name}** {item.version or item.digest[:12]}" for item in manifest.inputs]
    return "\n".join(lines) or "nothing: it starts here"
