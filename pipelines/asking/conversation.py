"""`millrace chat` in a terminal: asks, prints answers as they grow, takes thumbs. Ctrl-C stops an answer, a second one before
it has stopped ends the conversation. Two speakers answer one after the other, each with its own history. Drafted tokens that
the model accepted are green. What a model says cannot steer the terminal."""

import os
import random
import re
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from difflib import get_close_matches

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from resources.lake import LakeLayout
from resources.records import visible
from resources.serving import ChatExchange, Message, NotRatableError, Question, Talking, keep_rating, ratable_in

GAP_S = 0.05
"""Nobody types a line in so short a time."""


class TypedMessages:
    """A reader of messages."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._is_terminal = sys.stdin.isatty()
        if self._is_terminal:
            with suppress(ImportError):
                import readline

                readline.parse_and_bind("set enable-bracketed-paste on")

    def __call__(self, prompt: str) -> str:
        if not self._waiting:
            lines = [input(prompt)]
            try:
                while self._is_terminal and _is_readable():
                    lines.append(input())
            except EOFError:
                self._waiting.append("")
            return "\n".join(lines)
        if not (text := self._waiting.popleft()):
            raise EOFError
        print(f"{prompt}{visible(text.rstrip(), lines=True)}", flush=True)
        return text

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """For as long as nothing else reads the terminal."""
        over = threading.Event()
        thread = threading.Thread(target=self._wait, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _wait(self, over: threading.Event) -> None:
        last_s, text = 0.0, "none yet"
        while self._is_terminal and text and not over.is_set():
            if not _is_readable():
                continue
            text, now_s = "", time.monotonic()
            with suppress(OSError):  # the terminal was closed
                text = os.read(sys.stdin.fileno(), 1 << 16).decode(errors="replace")
            if text and self._waiting and now_s - last_s < GAP_S:
                self._waiting[-1] += text
            else:
                self._waiting.append(text)
            last_s = now_s


def _is_readable() -> bool:
    return bool(select.select([sys.stdin], [], [], GAP_S)[0])


HELP = """/up, /down [WHY]     what you think of the last answer (with two models: /up 2 WHY);
                     it keeps the conversation up to that answer, and the next run reads it
/temperature 0.7     also /top_p, /max_tokens, /seed: how answers are sampled; without a value: what it is
/draft on, off       with or without the drafter: the answers' distribution is the same, the speed is not
/system [TEXT]       the system prompt, "" for none; without a text: what it is
/new                 forget the conversation so far
Ctrl-C stops an answer, and a second one ends; Ctrl-D or /quit ends. Lines that are pasted at once are one message."""
SETTINGS = ("temperature", "top_p", "max_tokens", "seed")
ALONE = ("new", "help", "quit", "exit")
"""Commands without a value: more words after them are a message."""
COMMANDS = ("up", "down", *SETTINGS, "draft", "system", *ALONE)
USER = Message(role="user", content="")


class TerminalChat:
    """ask: reads a message; raises EOFError at the end."""

    def __init__(
        self,
        console: Console,
        lake: LakeLayout | None,
        talks: Sequence[Talking],
        system: str,
        sampling: dict,
        draft: bool,
        ask: Callable[[str], str] | None = None,
    ):
        self.console, self.lake, self.talks, self.ask = console, lake, talks, ask or TypedMessages()
        self.ahead = getattr(self.ask, "ahead", nullcontext)
        self.system, self.draft, self.sampling = system, draft, dict(sampling)
        self._begin()

    def _begin(self) -> None:
        self.said: list[list[Message]] = [[] for _ in self.talks]
        self.last: list[ChatExchange | None] = [None for _ in self.talks]

    def run(self) -> None:
        """Until the input ends. What ends a terminal or a service ends it too, unlike Ctrl-C."""

        def end(number: int, _: object) -> None:
            raise SystemExit(128 + number)

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            self._converse()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _converse(self) -> None:
        while True:
            try:
                line = self.ask("> " if sys.stdin.isatty() else "").rstrip()
            except KeyboardInterrupt:
                self._say("Ctrl-D ends")
                continue
            except EOFError:
                return
            name, value = _command_in(line)
            if name in ("quit", "exit"):
                return
            if name is not None:
                self._command(name, value)
            elif line.strip():
                self._ask(line.strip())

    def _ask(self, text: str) -> None:
        seed = self.sampling.get("seed", random.randrange(2**31))  # the same of both, so that they differ by their weights only
        for place, talk in enumerate(self.talks):
            messages = [*self.said[place], Message(role="user", content=text)]
            system = [Message(role="system", content=self.system)] if self.system else []
            defaults = {"temperature": talk.temperature, "top_p": talk.top_p}
            question = Question(messages=[*system, *messages], draft=self.draft, **{**defaults, **self.sampling, "seed": seed})
            if len(self.talks) > 1:
                self._say(f"{place + 1} {talk.speaker.name}", style="bold")
            with self.ahead():
                exchange = self._answered(talk, question)
            if "error" in exchange.done:
                self._say(exchange.done["error"], style="red")
                continue
            self.last[place], answer = exchange, Message(role="assistant", content=exchange.text)
            self.said[place] = [*messages, answer]
            self._say(_figures(exchange), style="dim")

    def _answered(self, talk: Talking, question: Question) -> ChatExchange:
        exchange, stopped = ChatExchange(talk.speaker, question), False
        talk.ask(question)
        while not exchange.done:
            try:
                exchange.add(line := talk.line())
                if not stopped:
                    for text, accepted in [*line.get("pieces", []), [line.get("rest", ""), False]]:
                        self.console.print(Text(visible(text, lines=True), "green" if accepted else ""), end="", soft_wrap=True)
                        self.console.file.flush()
            except KeyboardInterrupt:
                if stopped:
                    raise
                talk.stop()
                stopped = True
        self.console.print()
        return exchange

    def _command(self, name: str, value: str) -> None:
        if name in ("up", "down"):
            self._rate(name, value)
        elif name in SETTINGS:
            self._set(name, value)
        elif name == "draft" and value in ("", "on", "off"):
            self.draft = value == "on" if value else self.draft
            self._say(f"the drafter is {'on' if self.draft else 'off'}")
        elif name == "system":
            self.system = "" if value in ('""', "''") else value or self.system
            self._say(visible(self.system, lines=True) or "there is no system prompt")
        elif name == "new":
            self._begin()
        else:
            if name and name not in COMMANDS:
                self._say(f"there is no command /{name}; with a space before it, it is a message")
            self._say(HELP)

    def _set(self, name: str, value: str) -> None:
        try:
            if value:
                self.sampling[name] = getattr(Question.model_validate({"messages": [USER], name: value}), name)
            self._say(f"{name} {self.sampling.get(name, getattr(self.talks[0], name, 'another one for each answer'))}")
        except ValidationError as error:
            self._say(f"{name} {value}: {error.errors()[0]['msg'].lower()}", style="red")

    def _rate(self, value: str, words: str) -> None:
        number, _, rest = words.partition(" ")
        named = number.isdigit() and 0 < int(number) <= len(self.talks)
        place, comment = (int(number) - 1, rest) if named else (0, words)
        exchange = self.last[place]
        if exchange is None:
            self._say("there is no answer yet")
        elif len(self.talks) > 1 and not named:
            self._say(f"whose answer? /{value} 1 or /{value} 2")
        else:
            try:
                lake = ratable_in(self.lake, exchange.speaker)
            except NotRatableError as error:
                return self._say(f"not kept: {error}")
            keep_rating(lake, exchange, value, comment.strip())
            self._say(
                f"kept with the conversation up to it in {lake.place}: the next run of {exchange.speaker.workload} "
                f"reads it with thumb {value}"
            )

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _command_in(line: str) -> tuple[str | None, str]:
    """(name, value) of a command, or of what was meant as one; (None, "") of a message, such as one about /etc/hosts."""
    match = re.fullmatch(r"/(\w*)(?:\s+(.*))?", line, re.DOTALL)
    name, value = match.groups("") if match else ("", "")
    is_command = not value or (name not in ALONE and bool(get_close_matches(name, COMMANDS, cutoff=0.75)))
    return (name, value) if match and is_command else (None, "")


def _figures(exchange: ChatExchange) -> str:
    done = exchange.done
    rate = f"{done['tokens'] / done['seconds']:.1f} tokens/s" if done["seconds"] else ""
    drafted = f"{done['accepted'] / done['drafted']:z.0%} of {done['drafted']} drafted tokens" if done.get("drafted") else ""
    drafted = f"{drafted} accepted" if drafted else ""
    ended = {"length": "cut at max_tokens", "stopped": "stopped"}.get(done["done"], "")
    left = f"{done['dropped']} oldest messages left out, to fit the context" if done["dropped"] else ""
    return ", ".join(part for part in (f"{done['tokens']} tokens", rate, drafted, ended, left) if part)
