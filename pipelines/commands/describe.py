"""Commands about millrace itself: `schema`, `models` and the option `--version`."""

import platform
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from pipelines.terminal import OutputFormat, app, console

PROJECT = Path(__file__).resolve().parents[2]
SHOWN = ("dagster", "duckdb", "torch")


def version_line() -> str:
    """`millrace 0.1.0 (python 3.11.7, dagster 1.13.27, duckdb 2.0.0, torch 2.13.0; revision 0123456789ab)`."""
    parts = [f"python {platform.python_version()}", *(f"{name} {_version_of(name)}" for name in SHOWN)]
    revision = checkout_revision(PROJECT)
    return f"millrace {own_version()} ({', '.join(parts)}{f'; revision {revision}' if revision else ''})"


def own_version() -> str:
    """The version in pyproject.toml of a checkout, else of the installed package."""
    declared = PROJECT / "pyproject.toml"
    if declared.is_file():
        return tomllib.loads(declared.read_text(encoding="utf-8")).get("project", {}).get("version", "unknown")
    return _version_of("millrace")


def checkout_revision(project: Path) -> str | None:
    """The Git revision of a checkout, with `-dirty` if files were changed; None without a checkout or git."""
    if not (project / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(project), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


PANEL = "Reference"


@app.command(rich_help_panel=PANEL)
def schema(markdown: Annotated[bool, typer.Option(help="print the reference of all keys (Markdown) instead")] = False) -> None:
    """Prints the JSON schema of recipes, for completion and checks in an editor."""
    from pipelines.contract import Recipe, as_text, json_schema, reference

    print(reference(Recipe) if markdown else as_text(json_schema(Recipe)), end="")


@app.command(rich_help_panel=PANEL)
def models(
    again: Annotated[bool, typer.Option(help="run every operation on tiny models now, instead of printing the record")] = False,
    family: Annotated[list[str] | None, typer.Option(help="only this model_type; may be given several times")] = None,
    format: Annotated[OutputFormat, typer.Option(help="how to print the rows")] = OutputFormat.table,
    markdown: Annotated[bool, typer.Option(help="print the tables of docs/models.md instead")] = False,
) -> None:
    """Lists the model families, and which operations work with each."""
    from pipelines.asking import print_models

    print_models(again, family or [], format.value, markdown, console)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


@app.callback()
def millrace(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """From a product's own LLM logs to endpoint-ready weights, in one declared Dagster graph."""
