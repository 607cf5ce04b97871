"""The command `scrape`: the metrics of a server that millrace did not start, in the table serving_metrics."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.terminal import LakeOption, app, open_lake, print_line

PANEL = "Check and release"


@app.command(rich_help_panel=PANEL)
def scrape(
    workload: Annotated[str, typer.Argument(help="workload whose release the server serves")],
    url: Annotated[str, typer.Option(help="address of a vLLM or SGLang server, such as http://gpu-1:8000")],
    release: Annotated[
        str, typer.Option(help="release that it serves", show_default="the one that the fingerprint of an answer names")
    ] = "",
    every: Annotated[float, typer.Option(help="seconds of a window", min=1, max=3600)] = 60,
    api_key_env: Annotated[str | None, typer.Option(help="environment variable that holds the server's API key")] = None,
    lake: LakeOption = None,
) -> None:
    """Reads a server's metrics by window and release until it is stopped: acceptance, tokens/s, latency, errors."""
    from resources.monitoring import scrape as scrape_server
    from resources.releases import find_release

    place = open_lake(lake)
    named = find_release(place, release, workload).directory.name if release else None
    scrape_server(place, workload, url, named, every, print_line, api_key_env)
