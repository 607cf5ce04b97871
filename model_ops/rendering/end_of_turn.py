"""How an answer ends: the text after which the model stops, read from a short conversation without and with a next turn.

Usually that is the last special token of an answer. The end may come only with the next message (GLM, Apertus): then it is the
first special token of what follows. What follows when the conversation ends (Phi-3's eos, Command R7B's generation prompt) is
no part of the answer. Without any special token the tokenizer's eos ends it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class EndOfTurn:
    """How a chat template ends an answer."""

    cut: str
    """Text to remove from the end of an answer."""
    added: str
    """Text to append, unless a special token ends the answer."""
    specials: tuple[str, ...]

    def applied(self, answer: str, eos: str | None) -> str:
        """The answer up to its end of turn. A server stops at the first eos, so nothing after it is learnt."""
        if self.cut and answer.endswith(self.cut):
            answer = answer[: -len(self.cut)]
        if eos and eos in answer:
            answer = answer[: answer.index(eos) + len(eos)]
        bare = answer.rstrip()
        if bare.endswith(self.specials):
            return bare
        return (answer if self.added[:1].isspace() else answer.rstrip("\n")) + (self.added or eos or "")

    def removed(self, answer: str, eos: str | None) -> str:
        """The answer without its end of turn: of an answer that was cut, the model has said no more."""
        whole = self.applied(answer, eos)
        last = next(
            (
                end
                for end in sorted((self.added, eos or "", *self.specials), key=len, reverse=True)
                if end and whole.endswith(end)
            ),
            "",
        )
        return whole.removesuffix(last)


def end_of_turn(question: str, alone: str, followed: str, specials: Sequence[str]) -> EndOfTurn:
    """The end of an answer.

    question: the rendering of a question, without generation prompt if the template can leave it out. alone: question and
    answer. followed: question, answer, and a next message. specials: the special tokens.
    """
    tokens = tuple(specials)
    shared = _shared(alone, followed)
    if shared == len(alone):
        if alone.rstrip().endswith(tokens):
            return EndOfTurn("", "", tokens)
        first = _first_special(followed[shared:], tokens)
        return EndOfTurn("", followed[shared : shared + first] if first else "", tokens)
    always = _generation_prompt(question, alone, tokens)
    if always:
        return EndOfTurn(always, "", tokens)
    end = alone[:shared]
    while end and not end.rstrip().endswith(tokens) and _inside_special(alone, len(end), tokens):
        end = end[:-1]
    if end.rstrip().endswith(tokens) and not alone[len(end.rstrip()) :].startswith(tokens):
        return EndOfTurn(alone[len(end.rstrip()) :], "", tokens)
    return EndOfTurn("", "", tokens)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """All special tokens: those with a role (bos, eos, ...) and those only marked as special, such as <|eot_id|> in Llama 3's
    base models."""
    added = tokenizer.added_tokens_decoder.values()
    return list(dict.fromkeys([*tokenizer.all_special_tokens, *(token.content for token in added if token.special)]))


def _shared(one: str, other: str) -> int:
    """Length of the common beginning."""
    return next(
        (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other))
    )


def _first_special(text: str, specials: tuple[str, ...]) -> int:
    """Index after the first special token of a text, if only white space precedes it; else 0."""
    begin = len(text) - len(text.lstrip())
    longest = max((len(token) for token in specials if text.startswith(token, begin)), default=0)
    return begin + longest if longest else 0


def _inside_special(text: str, place: int, specials: tuple[str, ...]) -> bool:
    """Whether a special token lies around this place, or white space before it."""
    if text[place - 1 : place].isspace():
        return True
    return any(text.startswith(token, start) for token in specials for start in range(max(0, place - len(token) + 1), place))


def _generation_prompt(question: str, alone: str, specials: tuple[str, ...]) -> str:
    """The generation prompt that a template adds to every rendering; empty if it adds none."""
    after = question.rpartition("QUESTION")[2]
    first = _first_special(after, specials)
    prompt = after[first:]
    return prompt if first and prompt.strip() and alone.endswith(prompt) else ""
