"""Checks of the smoke set that need nothing but text (answers, streams, stop texts, long prompts), and a check's result.

Each check gives a `SmokeResult`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model_ops.answering import NEUTRAL
from model_ops.evaluation.smoke.asking import NoAnswerError, SmokeClient, SmokePrompt, TooLong
from model_ops.jobs import counted

MOST_TOKENS, MOST_PROMPTS = 64, 5
REASONS = ("stop", "length", "tool_calls")
STOP_CHARACTERS = 4
LONGEST_PROMPT = 8_192
"""Tokens of the long prompt at most: a longer one takes minutes on a CPU."""
ROOM = 16


@dataclass(frozen=True)
class SmokeAnswer:
    """A greedy answer."""

    prompt: SmokePrompt
    text: str
    prompt_ids: list[int] | None
    ids: list[int] | None
    """prompt_ids, ids: None where the server does not give token ids."""


def greedy(asking: SmokeClient) -> dict[str, object]:
    """Fields of a request for a greedy answer with its token ids."""
    return {"max_tokens": MOST_TOKENS} if asking.plain else {"max_tokens": MOST_TOKENS, "return_token_ids": True, **NEUTRAL}


def ask_prompts(asking: SmokeClient, prompts: Sequence[SmokePrompt]) -> tuple[list[SmokeResult], list[SmokeAnswer]]:
    """Asks prompts until MOST_PROMPTS are answered; those that do not fit the server's context are left out. One of them is
    asked as a stream, too."""
    answers: list[SmokeAnswer] = []
    too_long = 0
    for prompt in prompts:
        if len(answers) == MOST_PROMPTS:
            break
        try:
            choice = asking.chat(prompt, **greedy(asking))
        except TooLong:
            too_long += 1
            continue
        except NoAnswerError as error:
            return [SmokeResult("answers", False, f"row {prompt.row_id}: {error}")], answers
        if choice["finish_reason"] not in REASONS:
            said = f"row {prompt.row_id}: its answer ended with an unknown finish_reason"
            return [SmokeResult("answers", False, said)], answers
        answers.append(
            SmokeAnswer(
                prompt, choice["message"].get("content") or "", _ids(choice["prompt_token_ids"]), _ids(choice.get("token_ids"))
            )
        )
    if not answers:
        return [SmokeResult("answers", False, f"none of {counted(too_long, 'prompt')} fits its context")], answers
    if not any(answer.text.strip() for answer in answers):
        return [SmokeResult("answers", False, f"it answered {counted(len(answers), 'prompt')} with no text at all")], answers
    said = counted(len(answers), "prompt") + (f"; {too_long} more did not fit its context" if too_long else "")
    return [SmokeResult("answers", True, said), _stream(asking, answers)], answers


def _stream(asking: SmokeClient, answers: Sequence[SmokeAnswer]) -> SmokeResult:
    answer = next(answer for answer in answers if answer.text.strip())
    more = {name: value for name, value in greedy(asking).items() if name != "return_token_ids"}
    try:
        text, reason, ended = asking.stream(answer.prompt, **more)
    except NoAnswerError as error:
        return SmokeResult("stream", False, str(error))
    if reason is None or not text.strip() or not (ended or asking.plain):
        missing = "no text" if not text.strip() else "no finish_reason" if reason is None else "no end ([DONE])"
        return SmokeResult("stream", False, f"row {answer.prompt.row_id}: the streamed answer has {missing}")
    return SmokeResult("stream", True, "a streamed answer")


def check_stop(asking: SmokeClient, answers: Sequence[SmokeAnswer]) -> SmokeResult:
    """Asks for an answer again, with a part of it as the stop text: the part must not come back."""
    long_enough = [answer for answer in answers if len(answer.text) >= 3 * STOP_CHARACTERS]
    if not long_enough:
        return SmokeResult("stop", None, "every answer is too short to be stopped")
    answer = long_enough[0]
    middle = len(answer.text) // 2
    stop = answer.text[middle : middle + STOP_CHARACTERS]
    try:
        choice = asking.chat(answer.prompt, stop=[stop], **greedy(asking))
    except NoAnswerError as error:
        return SmokeResult("stop", False, str(error))
    if stop in (choice["message"].get("content") or ""):
        return SmokeResult("stop", False, f"row {answer.prompt.row_id}: the answer goes on after its stop text")
    return SmokeResult("stop", True, "the answer ends before its stop text")


def check_long_prompt(asking: SmokeClient, longest: int | None, answers: Sequence[SmokeAnswer]) -> SmokeResult:
    """A prompt that nearly fills the context is answered, and one that is too long is refused and harms nothing.

    longest: most tokens of prompt and answer together.
    """
    ids = next((answer.prompt_ids for answer in answers if answer.prompt_ids), None)
    if longest is None or ids is None:
        return SmokeResult("long prompt", None, "the server says neither its longest context nor token ids")
    length = max(1, min(longest, LONGEST_PROMPT) - ROOM)
    many = (ids * (length // len(ids) + 1))[:length]
    try:
        asking.completion(many, max_tokens=1, temperature=0.0)
        if longest <= LONGEST_PROMPT:
            too_long = (ids * (longest // len(ids) + 1))[: longest + 1]
            status = asking.status("/v1/completions", {"model": asking.model, "prompt": too_long, "max_tokens": 1})
            if not 400 <= status < 500:
                return SmokeResult("long prompt", False, f"a prompt longer than its context is answered with HTTP {status}")
        if asking.status("/health") != 200:
            return SmokeResult("long prompt", False, "it is not healthy after a long prompt")
    except NoAnswerError as error:
        return SmokeResult("long prompt", False, f"{length} tokens: {error}")
    return SmokeResult("long prompt", True, f"{length} tokens")


def _ids(value: object) -> list[int] | None:
    """Token ids as a server gave them; None for anything else."""
    return value if isinstance(value, list) and value and all(type(each) is int for each in value) else None


@dataclass(frozen=True)
class SmokeResult:
    """Result of one smoke check."""

    name: str
    passed: bool | None
    """None if the check could not be made with this server, and `said` says why."""
    said: str
    """Details without any text of users: ids of rows, and numbers."""
