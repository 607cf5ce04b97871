"""Commands about millrace itself: `schema`, `models` and the option `--version`."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.terminal import OutputFormat, app, console

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
        from pipelines.commands.version import version_line

        print(version_line())
        raise typer.Exit


@app.callback()
def millrace(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """From a product's own LLM logs to endpoint-ready weights, in one declared Dagster graph."""
