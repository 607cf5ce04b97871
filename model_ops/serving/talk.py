"""A model that is talked to, in a process of its own: questions in, answers out as they grow, one JSON object a line.

    python -m model_ops.serving.talk MODEL METHOD K [DRAFTER]        # METHOD: none, ngram, suffix, drafter

in:  {"messages": [...], "temperature": 0.7, "top_p": 1, "max_tokens": 256, "seed": 0, "draft": true}, or {"stop": true}
out: {"ready": true, "positions": 4096, "temperature": 0.7, "top_p": 1.0} first; of an answer after each round
     {"pieces": [["text", accepted], ...]}, then {"done": "stop", "length" or "stopped", ...} or {"error": "a sentence"}

The model's own chat template renders the messages. Where they leave no room for an answer, the oldest turns after the system
message are left out (`dropped`). accepted: the drafter proposed the token. Nothing of what is said goes to standard error."""

import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_ops.completions import GREEDY_BELOW, server_defaults
from model_ops.decoding import Drafter, Runner, Truncation, decode, load_runner, render_prompt
from model_ops.drafting import baselines
from model_ops.jobs import ModelError
from model_ops.machine import set_torch_environment
from model_ops.models import end_of_text_ids, load_tokenizer
from model_ops.rendering import Row
from model_ops.speculators import load_draft_model

HALF = "\ufffd"
"""What a tokenizer writes for tokens that are not a whole character yet."""
LEAST_ROOM = 4
"""An answer has room for its max_tokens, or for this part of the model's positions where that is less."""


class AnswerCancelled(Exception):
    """The answer was cancelled."""


class Talk:
    """A loaded model and its conversation's rules."""

    def __init__(self, model: Path, method: str, tokens: int, drafter: Path | None):
        self.tokenizer, self.runner = load_tokenizer(model), load_runner(model)
        self.eos_ids, self.positions = end_of_text_ids(model), self.runner.max_positions
        self.drafter, self.tokens = _drafter(self.runner, method, drafter), tokens
        self.defaults = server_defaults(model)
        self.stopping = threading.Event()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Says the pieces, and returns the last line. Raises ModelError for messages that cannot be asked."""
        most = self.positions - 1 - min(request["max_tokens"], self.positions // LEAST_ROOM)
        ids, dropped = self._fitting(request["messages"], most)
        text, first_s, began_s = _Text(self.tokenizer), None, time.monotonic()

        def grown(_: int, tokens: list[int], accepted: int) -> None:
            nonlocal first_s
            first_s = first_s if first_s is not None else time.monotonic() - began_s
            pieces = [[text.added(token), place < accepted] for place, token in enumerate(tokens) if token not in self.eos_ids]
            say({"pieces": [piece for piece in pieces if piece[0]]})
            if self.stopping.is_set():
                raise AnswerCancelled

        drafter = self.drafter if request["draft"] else None
        temperature = request["temperature"] if request["temperature"] >= GREEDY_BELOW else 0.0
        done: dict[str, Any] = {"done": "stopped", "dropped": dropped, "prompt_tokens": len(ids)}
        try:
            [answer] = decode(
                self.runner,
                [ids],
                ["chat"],
                eos_ids=self.eos_ids,
                temperature=temperature,
                drafter=drafter,
                max_new_tokens=request["max_tokens"],
                num_speculative_tokens=self.tokens,
                seed=request["seed"],
                truncation=Truncation(top_p=request["top_p"]),
                on_tokens=grown,
            )
            done |= {
                "done": answer.finish_reason,
                "drafts": answer.drafts,
                "drafted": answer.drafted,
                "accepted": answer.accepted,
            }
        except AnswerCancelled:
            pass
        return {**done, "tokens": len(text.ids), "first_s": first_s, "seconds": time.monotonic() - began_s, "rest": text.rest()}

    def _fitting(self, messages: list[dict[str, Any]], most: int) -> tuple[list[int], int]:
        """The prompt's ids, and how many messages were left out so that they fit. A conversation begins with a user's."""
        fitting, lead = list(messages), int(messages[0]["role"] == "system")
        while len(ids := render_prompt(self.tokenizer, Row("chat", fitting, ts=datetime.now(UTC)))) > most:
            later = next((place for place in range(lead + 1, len(fitting)) if fitting[place]["role"] == "user"), None)
            if later is None:
                raise ModelError(
                    f"the message has {len(ids)} tokens with its system prompt, and {max(most, 0)} fit beside an "
                    "answer: shorten one of them"
                )
            del fitting[lead:later]
        return ids, len(messages) - len(fitting)


class _Text:
    """Text of tokens as they come: a token that is half a character waits for the next one."""

    def __init__(self, tokenizer):
        self.tokenizer, self.ids = tokenizer, []
        self._from, self._read = 0, 0

    def added(self, token: int) -> str:
        self.ids.append(token)
        new = self._new()
        if new.endswith(HALF):
            return ""
        self._from, self._read = self._read, len(self.ids)
        return new

    def rest(self) -> str:
        """What still waits at the answer's end."""
        return self._new() if self._read < len(self.ids) else ""

    def _new(self) -> str:
        before = self.tokenizer.decode(self.ids[self._from : self._read], skip_special_tokens=True)
        return self.tokenizer.decode(self.ids[self._from :], skip_special_tokens=True)[len(before) :]


def _drafter(runner: Runner, method: str, directory: Path | None) -> Drafter | None:
    if method == "none":
        return None
    if directory is None:
        return baselines()[method]
    model = load_draft_model(directory, runner.dtype).to(runner.device).attach(runner)
    return model.drafter()


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _asked(talk: Talk) -> Iterator[dict[str, Any]]:
    """Questions from standard input, until it ends; a thread reads it, so that an answer can be stopped."""
    waiting: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            said = json.loads(line)
            if "stop" in said:
                talk.stopping.set()
            else:
                waiting.put(said)
        talk.stopping.set()
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (said := waiting.get()) is not None:
        talk.stopping.clear()
        yield said


def main(words: list[str]) -> None:
    set_torch_environment()
    model, method, tokens, *drafter = words
    try:
        talk = Talk(Path(model), method, int(tokens), Path(drafter[0]) if drafter else None)
    except ModelError as error:
        return say({"error": str(error)})
    say(
        {
            "ready": True,
            "positions": talk.positions,
            "temperature": talk.defaults.temperature,
            "top_p": talk.defaults.truncation.top_p,
        }
    )
    for asked in _asked(talk):
        try:
            say(talk.answer(asked))
        except ModelError as error:
            say({"error": str(error)})
        except Exception as error:  # its message may quote what was said
            say({"error": f"the model failed ({type(error).__name__})"})


if __name__ == "__main__":
    main(sys.argv[1:])
