"""The command `chat`: talk to a release, a model or an alias, in the terminal or on a page of this machine."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from pipelines.terminal import LakeOption, app, console, errors, open_lake, print_line

PANEL = "Check and release"


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
    from resources.serving import chat_page, find_speaker, talking

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
        talks = [stack.enter_context(talking(each)) for each in speakers]
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
            console.print(
                f"system prompt: of {learnt.share:z.0%} of the training rows of {learnt.name} (/system shows it)",
                highlight=False,
            )
        console.print("/help lists commands; Ctrl-C stops an answer, Ctrl-D ends", highlight=False)
        TerminalChat(console, place, talks, prompt, sampling, draft).run()


def _until_interrupted() -> None:
    import threading

    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return
