"""The marks around a model's reasoning, and whether a prompt leaves a block of reasoning open.

block_at_end("<|im_start|>assistant\\n<think>\\n")       # PromptBlock(start=22, is_open=True, ...)
"""

import re
from dataclasses import dataclass

MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""(begin, end) in the chat templates of public models."""


@dataclass(frozen=True)
class PromptBlock:
    """A block of reasoning at the end of a prompt."""

    start: int
    """Position of its first character."""
    is_open: bool
    begin: str
    end: str
    """begin, end: its marks."""
    space: str = ""
    """The white space after the beginning mark of an open block."""


def block_at_end(prompt: str) -> PromptBlock | None:
    """The block of reasoning with which a prompt ends; None if it ends otherwise."""
    text = prompt.rstrip()
    for begin, end in MARKS:
        if text.endswith(begin):
            return PromptBlock(len(text) - len(begin), True, begin, end, prompt[len(text) :])
        if text.endswith(end):
            inside = text[: -len(end)].rstrip()
            return PromptBlock(len(inside) - len(begin) if inside.endswith(begin) else len(text) - len(end), False, begin, end)
    return None


def without_block(text: str) -> str:
    """The text without a block of reasoning, or the end mark of one, at its beginning."""
    bare = text.lstrip()
    for begin, end in MARKS:
        if bare.startswith(begin) and end in bare:
            return bare.partition(end)[2].lstrip()
        if bare.startswith(end):
            return bare[len(end) :].lstrip()
    return text


def opens_block(text: str) -> bool:
    """Whether a text begins with a block of reasoning that it does not end."""
    bare = text.lstrip()
    return any(bare.startswith(begin) and end not in bare for begin, end in MARKS)


def empty_block(text: str) -> tuple[int, int] | None:
    """(first character inside, first character of the end mark) of an empty block of reasoning at the beginning of a text."""
    for begin, end in MARKS:
        block = re.match(rf"\s*{re.escape(begin)}(\s*){re.escape(end)}", text)
        if block:
            return block.span(1)
    return None
