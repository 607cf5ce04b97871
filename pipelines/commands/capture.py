"""The command `capture`: a pass-through before a server, which writes its traffic as log objects."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.terminal import HostOption, KeysOption, app, print_line

PANEL = "Check and release"


@app.command(rich_help_panel=PANEL)
def capture(
    store: Annotated[str, typer.Argument(help="directory or s3://BUCKET/PREFIX of the log objects; a source of a recipe")],
    to: Annotated[str, typer.Option(help="address of the OpenAI-compatible server, such as http://127.0.0.1:8000")],
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=0, max=65535)] = 8080,
    keys: KeysOption = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids/--no-token-ids", help="ask the server (vLLM) for the token ids of every chat")
    ] = False,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="local folder of what is not in the store yet",
            show_default="STORE/.journal; for S3, below MILLRACE_HOME or ~/.millrace",
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="seconds between objects", min=1)] = 30,
    journal_gib: Annotated[
        float, typer.Option(help="most that the journal holds while the store is away, in GiB", min=0.001)
    ] = 1,
    digest: Annotated[
        str, typer.Option(help="digest of the served weights, where its answers do not say it", show_default=False)
    ] = "",
    generation_config: Annotated[
        Path | None,
        typer.Option(
            help="generation_config.json of the served weights: sampling that the server applies where a request says nothing",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[float, typer.Option(help="seconds that requests in flight have when this command is stopped", min=0)] = 60,
) -> None:
    """Passes requests on to a server, and writes them with their answers as logs that `millrace run` reads."""
    from resources.gateway import CaptureSettings, read_rules, read_sampling, run_capture

    settings = CaptureSettings(
        store, journal, read_rules(keys), token_ids, every, int(journal_gib * 2**30), digest, read_sampling(generation_config)
    )
    run_capture(to, settings, host, port, drain, print_line)
