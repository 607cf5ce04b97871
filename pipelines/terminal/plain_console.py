"""The console of all commands: control characters in printed text are spelled out, never sent to the terminal. Text from logs
is printed as rich Text, or with markup=False, so that square brackets stay too."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from resources.records import visible


class PlainConsole(Console):
    """A rich console that spells out control characters in everything but its own styles and cursor movements."""

    def __init__(self, **settings: Any):
        super().__init__(emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The renderable's segments; ends of lines stay."""
        return self._plain(super().render(renderable, options))

    def render_str(self, text: str, **settings: Any) -> Text:
        """Text with our markup, escaped before rich drops control characters."""
        return super().render_str(visible(text, lines=True), **settings)

    @staticmethod
    def _plain(segments: Iterable[Segment]) -> Iterator[Segment]:
        for segment in segments:
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text, lines=True), segment.style)


def say(console: Console, words: str, style: str | None = None) -> None:
    """Prints a sentence as it is, without markup: folded on a terminal, one line elsewhere."""
    console.print(words, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def folded(words: str, console: Console, lead: int) -> list[str]:
    """The lines of a sentence that stands `lead` characters from the left. One line where the output is no terminal, so that
    programs can read it by line."""
    if not console.is_terminal:
        return [words]
    return textwrap.wrap(words, max(30, console.width - lead - 1), break_long_words=False, break_on_hyphens=False) or [""]
