"""Commands about what is served: `verify`, `sign`, `package`, `push`, `approve`, `withdraw`, `reject`, `promote`, `releases`,
`compare`, `rollback`, `measure`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from model_ops.jobs import counted, size
from pipelines.terminal import LakeOption, ReportFormat, app, console, errors, open_lake, print_line

PANEL = "Check and release"


class PackageFormat(StrEnum):
    """Form of a package."""

    directory = "directory"
    tar = "tar"
    oci = "oci"

    @classmethod
    def of(cls, out: Path) -> PackageFormat:
        return cls.tar if out.suffix == ".tar" else cls.directory


ReleaseArgument = Annotated[str, typer.Argument(help="version of the release (6 characters are enough), or its directory")]
ReasonOption = Annotated[str, typer.Option("--reason", help="one line that is recorded with the decision")]
YesOption = Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")]


@app.command(rich_help_panel=PANEL)
def verify(
    directory: Annotated[Path, typer.Argument(help="a model, drafter, dataset or release directory, or a lake's endpoints")],
    lake: LakeOption = None,
) -> None:
    """Checks a directory: digests, tensors, tokenizer, template, drafter settings, or the log of the endpoints."""
    from pipelines.releasing import notes_on_erasures, verify_directory

    if lake is not None and not directory.is_absolute() and not directory.exists():
        directory = Path(lake) / directory
    problems = verify_directory(directory)
    for problem in problems:
        print_line(f"✗ {problem}", style="red")
    if not problems:
        console.print(Text.assemble(("✓", "green"), f" {directory}: files, digests and contents agree"), soft_wrap=True)
        for note in notes_on_erasures(directory):
            print_line(f"! {note}", style="yellow")
    raise typer.Exit(1 if problems else 0)


@app.command(rich_help_panel=PANEL)
def approve(release: ReleaseArgument, reason: ReasonOption = "", yes: YesOption = False, lake: LakeOption = None) -> None:
    """Approves a release: names the page to read and asks, checks gates and digests again, records who and why, moves the
    endpoint's alias."""
    from pipelines.releasing import say_approved, say_waiting
    from resources.endpoints import Actor, approve_release

    place, by = open_lake(lake), Actor.of_command(reason)
    directory, _, seen = _asked_about(place, release, yes, "Approve", always=True)
    done = approve_release(place, directory, by, seen)
    if done.aliases is None:
        say_waiting(console, directory, done.approvals)
        return
    say_approved(console, place, seen, done.aliases, by, done.again, done.approvals)
    _publish(place, done.aliases)


@app.command(rich_help_panel=PANEL)
def sign(release: ReleaseArgument, lake: LakeOption = None) -> None:
    """Signs a release with the key that MILLRACE_SIGNING_KEY names, after its digests were checked."""
    from resources.releases import find_release
    from resources.releasing import attest
    from resources.signing import SIGNING_KEY, KeyProblemError, signing_key

    place = open_lake(lake)
    key = signing_key()
    if key is None:
        raise KeyProblemError(f"there is no key to sign with: set {SIGNING_KEY} to the path of a private key")
    directory = find_release(place, release).directory
    attest(place, directory, key)
    place.mirror.push()
    said = f" release {directory.name} is signed by the key {key.id[:12]}"
    console.print(Text.assemble(("✓", "green"), said), soft_wrap=True)


@app.command(rich_help_panel=PANEL)
def package(
    release: ReleaseArgument,
    out: Annotated[Path, typer.Argument(help="a new directory, or a new file that ends in .tar")],
    format: Annotated[PackageFormat | None, typer.Option(help="default: tar for a name that ends so, else directory")] = None,
    lake: LakeOption = None,
) -> None:
    """Writes a signed release with its models as one directory, tar or OCI layout that any machine can verify and serve."""
    from resources.endpoints import approvals_of
    from resources.releases import find_release
    from resources.releasing import package as write_package

    place = open_lake(lake)
    named = find_release(place, release).directory
    written = write_package(place, named, out, (format or PackageFormat.of(out)).value)
    said = f" {out}: release {named.name}, {counted(written.files, 'file')}, {size(written.bytes)}"
    console.print(Text.assemble(("✓", "green"), said), soft_wrap=True)
    if needed := approvals_of(place, named).needed:
        console.print(f"! it is not approved yet: {needed} must approve it", style="yellow", highlight=False)


@app.command(rich_help_panel=PANEL)
def push(
    release: ReleaseArgument,
    to: Annotated[str, typer.Argument(help="hf://ORG/REPOSITORY (token: HF_TOKEN) or s3://BUCKET/PREFIX")],
    lake: LakeOption = None,
) -> None:
    """Sends a release with its models to the Hugging Face Hub or a bucket: weights first, manifest last; continues a stopped
    push."""
    from resources.releases import find_release
    from resources.releasing import push_release

    place = open_lake(lake)
    named = find_release(place, release).directory
    with errors.status(f"pushing release {named.name} ..."):
        pushed = push_release(place, named, to)
    sent = f"{counted(pushed.files, 'file')} sent ({size(pushed.bytes)}), {pushed.there} were there"
    said = f" {to}: release {named.name}, {sent}"
    console.print(Text.assemble(("✓", "green"), said), soft_wrap=True)
    if not pushed.signed:
        console.print("! it is not signed, so nobody can verify it there", style="yellow", highlight=False)


@app.command(rich_help_panel=PANEL)
def withdraw(release: ReleaseArgument, reason: ReasonOption = "", yes: YesOption = False, lake: LakeOption = None) -> None:
    """Withdraws an approval, or refuses a candidate: no run and no rollback serves this release automatically."""
    from pipelines.releasing import say_withdrawn
    from resources.endpoints import Actor
    from resources.endpoints import withdraw as record_withdrawal

    place, by = open_lake(lake), Actor.of_command(reason)
    directory, endpoint, seen = _asked_about(place, release, yes, "Withdraw")
    record_withdrawal(place, directory, by, seen)
    say_withdrawn(console, place, directory, by)
    _publish(place, endpoint.read())


app.command("reject", rich_help_panel=PANEL, help="The same as withdraw, for a candidate that nobody approved.")(withdraw)


@app.command(rich_help_panel=PANEL)
def promote(
    release: Annotated[str, typer.Argument(help="version of an approved release, or, with --remove, its workload")],
    to: Annotated[str, typer.Option(help="further alias that is to name it, such as canary or eu")],
    remove: Annotated[bool, typer.Option("--remove", help="remove the alias instead")] = False,
    reason: ReasonOption = "",
    yes: YesOption = False,
    lake: LakeOption = None,
) -> None:
    """Makes a further alias of the endpoint name an approved release; gates, digests and signature are checked again."""
    from pipelines.releasing import say_named
    from resources.endpoints import Actor, Endpoint, promote_to

    place, by = open_lake(lake), Actor.of_command(reason)
    if remove:
        aliases = Endpoint(place, release).unname(to, by)
    else:
        directory, _, seen = _asked_about(place, release, yes, f"Let {to} name")
        aliases = promote_to(place, directory, to, by, seen)
    say_named(console, aliases, to)
    _publish(place, aliases)


@app.command(rich_help_panel=PANEL)
def releases(
    workload: Annotated[str, typer.Argument(help="workload whose releases are listed (default: all)")] = "",
    format: Annotated[ReportFormat, typer.Option(help="a table, or everything as JSON")] = ReportFormat.table,
    lake: LakeOption = None,
) -> None:
    """Lists releases, newest first: decision, aliases, gates, signature, erased rows."""
    from pipelines.releasing import print_releases, releases_as_json, releases_of

    rows = releases_of(open_lake(lake), workload)
    print(releases_as_json(rows)) if format == ReportFormat.json else print_releases(rows, console)


@app.command(rich_help_panel=PANEL)
def compare(
    release: ReleaseArgument,
    other: Annotated[str, typer.Argument(help="release to compare with (default: the champion)")] = "",
    format: Annotated[ReportFormat, typer.Option(help="a table, or everything as JSON")] = ReportFormat.table,
    lake: LakeOption = None,
) -> None:
    """What differs between two releases: data, base, code, settings, measurements, size."""
    from pipelines.releasing import comparison_as_json, print_comparison
    from resources.releases import find_release
    from resources.releasing import compare_releases

    place = open_lake(lake)
    named = find_release(place, release).directory
    comparison = compare_releases(place, named, find_release(place, other).directory if other else None)
    print(comparison_as_json(comparison)) if format == ReportFormat.json else print_comparison(comparison, console)


@app.command(rich_help_panel=PANEL)
def rollback(
    workload: Annotated[str, typer.Argument(help="workload whose endpoint returns to an earlier release")],
    to: Annotated[
        str,
        typer.Option(
            help="release to return to, also one that was rolled back (default: the last champion that was not withdrawn)"
        ),
    ] = "",
    reason: ReasonOption = "",
    yes: YesOption = False,
    lake: LakeOption = None,
) -> None:
    """Returns to an earlier champion and withdraws the release that it replaces."""
    from pipelines.releasing import say_rolled_back, show
    from resources.endpoints import Actor, Endpoint, roll_back, rollback_target, taint_of, workloads_with_endpoints
    from resources.releases import UnknownReleaseError, find_release

    place, by = open_lake(lake), Actor.of_command(reason)
    if workload not in (known := workloads_with_endpoints(place)):
        raise UnknownReleaseError(f"{place.root} has no endpoint of {workload!r}; there are: {', '.join(known) or 'none yet'}")
    endpoint = Endpoint(place, workload)
    _, seen = endpoint.seen()
    named = find_release(place, to or rollback_target(place, workload), workload)
    show(console, place, named.directory, seen)
    taint = taint_of(place, named.directory, seen.champion)
    if taint:
        print_line(f"! {taint}", style="yellow")
    _confirm(named, yes, f"Roll {workload} back from {seen.champion} to release {named.directory.name}?", bool(taint))
    aliases = roll_back(place, named.directory, by, seen, though_tainted=yes or (bool(taint) and sys.stdin.isatty()))
    say_rolled_back(console, place, seen, aliases, by)
    _publish(place, aliases)


@app.command(rich_help_panel=PANEL)
def measure(
    server: Annotated[str, typer.Argument(help="address of an OpenAI-compatible server, such as http://localhost:8000")],
    prompts: Annotated[Path, typer.Argument(help="a dataset (its test rows) or a JSONL file of messages", exists=True)],
    against: Annotated[str | None, typer.Option(help="a second server to compare with, say without the drafter")] = None,
    count: Annotated[int, typer.Option("--prompts", help="most prompts; chosen by a fixed seed", min=1)] = 64,
    concurrency: Annotated[str, typer.Option(help="requests at a time; one number or several: 1,8")] = "1,8",
    max_tokens: Annotated[int, typer.Option(help="most tokens of an answer", min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    model: Annotated[str | None, typer.Option(help="name of the model at the server (default: its first)")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="environment variable that holds the API key")] = None,
    format: Annotated[ReportFormat, typer.Option(help="a table, or everything as JSON")] = ReportFormat.table,
) -> None:
    """Measures a server on held-out prompts: tokens/s, latency, accepted drafts. Prints its first answer, too."""
    from pipelines.releasing import measure_servers, print_speeds, read_concurrency, read_prompts, speeds_as_json

    asked = read_prompts(prompts, count)
    levels = read_concurrency(concurrency)
    with errors.status("asking the server ..."):
        speeds = measure_servers(
            [server, *([against] if against else [])], asked, levels, max_tokens, temperature, model, api_key_env
        )
    if format == ReportFormat.json:
        print(speeds_as_json(speeds))
    else:
        print_speeds(speeds, console)


def _asked_about(lake, release: str, yes: bool, what: str, always: bool = False):
    """Shows the release and asks for confirmation: its directory, its endpoint, and the aliases that were shown."""
    from pipelines.releasing import show
    from resources.endpoints import Endpoint
    from resources.releases import find_release

    named = find_release(lake, release)
    directory = named.directory
    endpoint = Endpoint(lake, directory.parent.name)
    _, seen = endpoint.seen()
    show(console, lake, directory, seen)
    _confirm(named, yes, f"{what} release {directory.name} of {directory.parent.name}?", always)
    return directory, endpoint, seen


def _confirm(named, yes: bool, question: str, always: bool = False) -> None:
    """Asks if the release was named by few characters; at a terminal also if `always`. Raises UnsureNameError, typer.Exit."""
    from resources.releases import SHORTEST_SURE, UnsureNameError

    if yes or (named.sure and not (always and sys.stdin.isatty())):
        return
    if not sys.stdin.isatty():
        raise UnsureNameError(
            f"{named.given!r} is only the beginning of release {named.directory.name}, and nothing was changed: give at least "
            f"{SHORTEST_SURE} characters of it, or --yes"
        )
    if not typer.confirm(question):
        errors.print("Nothing was changed.")
        raise typer.Exit(1)


def _publish(lake, aliases) -> None:
    """Publishes the moved aliases to the SQL catalog and to Dagster's history."""
    from assets.release import endpoint_moved
    from pipelines.running import open_instance
    from resources.catalog import publish

    publish(lake)
    open_instance(lake).report_runless_asset_event(endpoint_moved(aliases))
