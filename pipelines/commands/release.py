"""Commands that check and move what is served: `verify`, `approve`, `rollback`, `measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.terminal import LakeOption, ReportFormat, app, console, errors, open_lake


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="a model, drafter, dataset or release directory")],
    lake: LakeOption = None,
) -> None:
    """Checks a directory: files against digests, tensors against config, tokenizer and template, a drafter's traps."""
    from pipelines.verification import verify_directory

    if lake is not None and not directory.is_absolute() and not directory.exists():
        directory = Path(lake) / directory
    problems = verify_directory(directory)
    for problem in problems:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
    if not problems:
        console.print(f"[green]✓[/] {directory}: files, digests and contents agree")
    raise typer.Exit(1 if problems else 0)


@app.command()
def approve(
    release: Annotated[str, typer.Argument(help="version of a release, or its directory")],
    lake: LakeOption = None,
) -> None:
    """Lets a release through: re-checks its gates and digests, records who approved, moves the endpoint's alias."""
    from resources.releasing.endpoints import Endpoint
    from resources.releasing.release import approve as record_approval
    from resources.releasing.release import find_release, person, read_release

    place = open_lake(lake)
    directory = find_release(place, release)
    record_approval(place, directory, by=person())
    aliases = Endpoint(place, read_release(directory).workload).promote(directory.name, by=person())
    _report_endpoint(place, aliases)
    console.print(f"[green]✓[/] {aliases.workload}: champion is {aliases.champion}, previous {aliases.previous}")


@app.command()
def rollback(workload: str, lake: LakeOption = None) -> None:
    """Makes the previous release the champion again."""
    from resources.releasing.endpoints import Endpoint
    from resources.releasing.release import ReleaseError, find_release, person, recheck, withdraw

    place = open_lake(lake)
    seen = Endpoint(place, workload).read()
    if seen.previous and (problems := recheck(place, find_release(place, f"{workload}/{seen.previous}"))):
        raise ReleaseError(f"release {seen.previous} cannot be served again: " + "; ".join(problems))
    aliases = Endpoint(place, workload).roll_back(by=person())
    withdraw(place, find_release(place, f"{workload}/{aliases.previous}"), by=person())
    _report_endpoint(place, aliases)
    console.print(f"[green]✓[/] {workload}: champion is {aliases.champion}, previous {aliases.previous}")


@app.command()
def measure(
    server: Annotated[str, typer.Argument(help="address of an OpenAI-compatible server, such as http://localhost:8000")],
    prompts: Annotated[Path, typer.Argument(help="a dataset (its test rows) or a JSONL file of messages", exists=True)],
    against: Annotated[str | None, typer.Option(help="a second server, say without the drafter: ratios are to it")] = None,
    count: Annotated[int, typer.Option("--prompts", help="at most this many, a seeded choice", min=1)] = 64,
    concurrency: Annotated[str, typer.Option(help="requests at a time, one or several: 1,8")] = "1,8",
    max_tokens: Annotated[int, typer.Option(help="of an answer", min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    model: Annotated[str | None, typer.Option(help="the name it is served by; its first one when left out")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="environment variable that holds the key")] = None,
    format: Annotated[ReportFormat, typer.Option(help="a table, or everything as JSON")] = ReportFormat.table,
) -> None:
    """Times a server on held-out prompts: tokens/s, latency, and how many drafts it accepts. Shows what it says, too."""
    from pipelines.measuring import as_json, compare, print_comparison, read_concurrency, read_prompts

    asked = read_prompts(prompts, count)
    levels = read_concurrency(concurrency)
    with errors.status("asking the server ..."):
        found = compare([server, *([against] if against else [])], asked, levels, max_tokens, temperature, model, api_key_env)
    if format == ReportFormat.json:
        print(as_json(found))
    else:
        print_comparison(found, console)


def _report_endpoint(lake, aliases) -> None:
    """Tells Dagster's history that the endpoint moved, so that the UI shows it."""
    import dagster as dg

    from pipelines.instance import open_instance

    open_instance(lake).report_runless_asset_event(
        dg.AssetMaterialization(
            asset_key=[aliases.workload, "endpoint"],
            metadata={"champion": aliases.champion or "", "previous": aliases.previous or "", "by": aliases.changed_by},
        )
    )
