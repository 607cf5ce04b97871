"""The table of `millrace models`: families, and the operations that work with each."""

import tempfile
from pathlib import Path

import pyarrow as pa
import typer
from rich.console import Console

from model_ops.families import FAMILIES
from model_ops.operations import as_markdown, installed_versions, read_trial_record, reasons, rows_of
from pipelines.terminal import print_rows

SHOWN = ("norms", "router")
"""Columns that only the formats for machines have; a terminal is too narrow."""


def print_models(again: bool, families: list[str], format: str, markdown: bool, console: Console) -> None:
    """Prints the record, or tries the families now (`again`). Exits with 2 for a family that is not in the table."""
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
        typer.echo(
            f"{unknown[0]} is not in the table of families, which holds {', '.join(FAMILIES)}; `millrace check RECIPE` "
            "tries a model of another family",
            err=True,
        )
        raise typer.Exit(2)
    wanted = families or list(FAMILIES)
    families_tried = _tried(wanted) if again else {name: read_trial_record().families[name] for name in wanted}
    if markdown:
        print(as_markdown(families_tried), end="")
        return
    rows = rows_of(families_tried)
    if format == "table":
        rows = [{name: value for name, value in row.items() if name not in SHOWN} for row in rows]
    print_rows(pa.Table.from_pylist(rows), format, console)
    if format != "table":
        return
    for reason in reasons(families_tried):
        typer.echo(reason)
    if not again:
        typer.echo(_provenance())


def _tried(families: list[str]) -> dict[str, dict[str, str | None]]:
    from model_ops.operations import try_operations, write_material
    from model_ops.verify import verify

    with tempfile.TemporaryDirectory() as folder:
        material = write_material(Path(folder))
        return {name: try_operations(name, Path(folder) / name, material, verify) for name in families}


def _provenance() -> str:
    """Where the record comes from, and whether other versions are installed now."""
    record, here = read_trial_record(), installed_versions()
    tried = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    other = [f"{name} {here[name]}" for name, version in record.versions.items() if here[name] != version]
    if other:
        return f"Tried with {tried}; installed here: {', '.join(other)}. `millrace models --again` tries them now."
    return f"Tried on tiny models with {tried}."
