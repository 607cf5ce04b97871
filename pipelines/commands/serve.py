"""The command `serve`: an endpoint's release on one address, and its successors."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperOption
from typer.main import get_command

from pipelines.terminal import HostOption, KeysOption, LakeOption, app, open_lake, print_line

PANEL = "Check and release"


class ServerName(StrEnum):
    """Inference servers."""

    vllm = "vllm"
    sglang = "sglang"
    transformers = "transformers"


@app.command(rich_help_panel=PANEL)
def serve(
    workloads: Annotated[
        list[str],
        typer.Argument(
            help="workload whose release answers; several whose releases are adapters on one base; and, after --, words for "
            "the server: -- --max-model-len 4096",
            metavar="WORKLOADS... [-- ARGUMENTS...]",
            show_default=False,
        ),
    ],
    alias: Annotated[str, typer.Option(help="alias whose release answers; `candidate` needs no approval")] = "champion",
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="follow the alias: switch to its next release without losing a request, and start servers again that end",
        ),
    ] = False,
    canary: Annotated[str | None, typer.Option(help="further alias whose release answers --share of the sessions")] = None,
    share: Annotated[float, typer.Option(help="share of the sessions that the canary answers", min=0, max=1)] = 0.1,
    server: Annotated[
        ServerName | None, typer.Option(help="inference server", show_default="the first that is installed")
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            help="interpreter of an environment that has the server, or the command vllm",
            show_default="this environment, or vllm on PATH",
        ),
    ] = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=0, max=65535)] = 8000,
    smoke: Annotated[bool, typer.Option("--smoke/--no-smoke", help="try a server before it takes traffic")] = True,
    start: Annotated[float, typer.Option(help="seconds that a server may take until it can be asked", min=1)] = 900,
    drain: Annotated[
        float, typer.Option(help="seconds that requests have when their server is replaced or stopped", min=0)
    ] = 600,
    wait: Annotated[
        float, typer.Option(help="seconds that a request waits while no server answers, before it gets 503", min=0)
    ] = 300,
    every: Annotated[float, typer.Option(help="with --watch: seconds between two looks at the alias", min=0.1)] = 2,
    logs: Annotated[
        Path | None,
        typer.Option(
            help="folder of the servers' logs and of what the smoke set found", show_default="<lake>/.serving/<workload>"
        ),
    ] = None,
    capture: Annotated[
        str | None, typer.Option(help="directory or s3://BUCKET/PREFIX into which the traffic is written as logs")
    ] = None,
    keys: KeysOption = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids/--no-token-ids", help="with --capture: ask the server for token ids of chats")
    ] = True,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="with --capture: local folder of what is not written there yet",
            show_default="CAPTURE/.journal; for S3, below MILLRACE_HOME or ~/.millrace",
        ),
    ] = None,
    scrape: Annotated[
        float, typer.Option(help="seconds between two readings of the servers' metrics into serving_metrics; 0: none", min=0)
    ] = 60,
    lake: LakeOption = None,
) -> None:
    """Serves the release that an alias names: verified, with its drafter, tried before it takes traffic. Releases of several
    workloads that are adapters on one base are served by one server."""
    from resources.gateway import CaptureSettings, read_rules
    from resources.serving import ServeSettings, TrafficSettings, find_program, require_servable
    from resources.serving import serve as serve_alias

    place = open_lake(lake)
    names = list(takewhile(lambda word: not word.startswith("-"), workloads))  # a server's words begin with a flag
    if not names:
        raise typer.BadParameter("name a workload before --", param_hint="WORKLOADS")
    workload, *beside = names
    captured = CaptureSettings(capture, journal, read_rules(keys), token_ids) if capture else None
    traffic = TrafficSettings(host, port, alias, canary, share, drain, captured, wait, scrape, tuple(beside))
    require_servable(place, workload, traffic)  # said before a server is sought
    settings = ServeSettings(
        find_program(server.value if server else None, program),
        logs or place.root / ".serving" / "+".join(names),
        workloads[len(names) :],
        start,
        smoke,
    )

    serve_alias(place, workload, traffic, settings, print_line, watch, every)


def passed_options(words: Sequence[str], given_as: str, own: Collection[str]) -> tuple[str, ...]:
    """Options of this command that another one passes on, each in one word: --wait=60. own: those that it sets by itself.

    Raises BadParameter, which names `given_as`, for a word that is none of the others.
    """
    alone = typer.Typer()
    alone.command()(serve)
    command = get_command(alone)
    options = {
        name: option
        for option in command.params
        if isinstance(option, TyperOption)
        for name in (*option.opts, *option.secondary_opts)
        if name not in own
    }
    for word in words:
        name, has_value, _ = word.partition("=")
        option = options.get(name)
        if option is None or bool(has_value) == option.is_flag:
            near = difflib.get_close_matches(name, options, n=1)
            why = (
                "another option sets it"
                if name in own
                else f"did you mean {near[0]}?"
                if near and option is None
                else "it has no such option; words for the inference server go into --argument"
                if option is None
                else "it takes no value"
                if option.is_flag
                else f"give the value in the same word: {name}=..."
            )
            raise typer.BadParameter(f"{word!r} cannot be passed on to `millrace serve`: {why}", param_hint=given_as)
        try:
            command.make_context("serve", ["workload", word])  # reads the value
        except typer.BadParameter as error:
            raise typer.BadParameter(
                f"{word!r} cannot be passed on to `millrace serve`: {error.message}", param_hint=given_as
            ) from None
    return tuple(words)
