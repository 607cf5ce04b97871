"""Commands around what answers: `serve`, `capture`, `scrape`, `chat`."""

import difflib
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperOption
from typer.main import get_command

from pipelines.terminal import HostOption, KeysOption, LakeOption, app, console, errors, open_lake, print_line

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
    Raises BadParameter, which names `given_as`, for a word that is none of the others."""
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
            said = f"{word!r} cannot be passed on to `millrace serve`: {error.message}"
            raise typer.BadParameter(said, param_hint=given_as) from None
    return tuple(words)


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


@app.command(rich_help_panel=PANEL)
def chat(
    speaker: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE|MODEL|ALIAS",
            help="workload (its champion), alias, release, model of the lake, directory, or Hugging Face id in the cache",
        ),
    ],
    other: Annotated[str, typer.Option("--with", help="a second one, which answers the same", show_default=False)] = "",
    page: Annotated[bool, typer.Option("--page", help="a page of this machine, side by side, instead of the terminal")] = False,
    port: Annotated[int, typer.Option(help="with --page: port to listen on", show_default="a free one", min=0, max=65535)] = 0,
    system: Annotated[
        str | None, typer.Option(help='system prompt; "" for none', show_default="the one of most training rows")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0: greedy", show_default="as the release serves", min=0, max=5)
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="share of the mass", show_default="as the release serves", min=0.01, max=1)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="longest answer", min=1, max=32_768)] = 512,
    seed: Annotated[
        int | None, typer.Option(help="of the sampling", show_default="another for each answer", min=0, max=2**31 - 1)
    ] = None,
    draft: Annotated[bool, typer.Option("--draft/--no-draft", help="with the release's drafter")] = True,
    lake: LakeOption = None,
) -> None:
    """Talks to a release or a model: its chat template and system prompt, its drafter, our own decoder. Needs no server."""
    from pipelines.asking import TerminalChat
    from resources.lake import LakeError
    from resources.serving import chat_page, find_speaker, start_talking

    try:
        place = open_lake(lake)
    except LakeError:
        if lake is not None:
            raise
        place = None  # a directory or a Hugging Face id needs none
    speakers = [find_speaker(place, name) for name in (speaker, other) if name]
    learnt = next((each for each in speakers if each.system), speakers[0])
    prompt = learnt.system if system is None else system
    with ExitStack() as stack:
        talks = [stack.enter_context(start_talking(each)) for each in speakers]
        with errors.status(f"loading {' and '.join(each.name for each in speakers)} ..."):
            for talk in talks:
                talk.wait()
        for talk in talks:
            said = f"{talk.speaker.name}: {talk.speaker.drafting.label}, {talk.positions:,} tokens of context"
            print_line(said)
        given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        sampling = {name: value for name, value in given.items() if value is not None}
        if page:
            front = stack.enter_context(chat_page(place, talks, prompt, {**sampling, "draft": draft}, port))
            print_line(f"{front.url}  (Ctrl-C ends)")
            _until_interrupted()
            return
        if prompt and system is None:
            message = f"system prompt: of {learnt.share:z.0%} of the training rows of {learnt.name} (/system shows it)"
            console.print(message, highlight=False)
        console.print("/help lists commands; Ctrl-C stops an answer, Ctrl-D ends", highlight=False)
        TerminalChat(console, place, talks, prompt, sampling, draft).run()


def _until_interrupted() -> None:
    import threading

    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return
