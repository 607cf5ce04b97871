"""A conversation of a policy by its exact tokens: what was sampled is never decoded and encoded again.

    talk = Conversation(row, template, encoder)
    talk.context                        # the tokens to sample after
    message, problem = talk.say(sampled)                 # what the policy said, as a server parses it
    talk.hear([{"role": "tool", ...}])                   # the context now ends with the next turn's generation prompt
    talk.parts                          # one, or more where the chat template rewrites what was said

After `hear` the context is what it was, and what the chat template writes between the end of the policy's turn and the next
one. That text is found by rendering the same messages up to the policy's turn and past it: the second text begins with the
first where the template keeps its history. Where it does not (reasoning that it leaves out of earlier turns, tools that it
moves to the last question), a server would send a prompt that is not what the policy has seen and said so far. Then the attempt
goes on in another part, whose prompt is what the server would send (as prime-rl does): each token is learnt after its context.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from model_ops.answers import NOT_SAMPLED, Rollout, Sampled
from model_ops.graders import Grade
from model_ops.rendering import ChatTemplate, Row, TurnEncoder, Unrenderable, learnt_turns, server_messages
from model_ops.tasks import UnusableAnswer, message_of


@dataclass
class ConversationPart:
    """Tokens after one prompt, and which of them the policy sampled."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """0 where nothing was sampled."""
    versions: list[int] = field(default_factory=list)
    """NOT_SAMPLED where nothing was."""

    def add(self, tokens: Sequence[int], sampled: Sampled | None = None) -> None:
        """Appends tokens: sampled ones, or those of the environment."""
        self.tokens += tokens
        self.log_probs += [0.0] * len(tokens) if sampled is None else sampled.log_probs.tolist()
        self.versions += [NOT_SAMPLED] * len(tokens) if sampled is None else sampled.token_versions.tolist()

    def rollout(self, ended: bool, grade: Grade, attempt: int) -> Rollout:
        """Up to the last sampled token."""
        count = max((place for place, version in enumerate(self.versions, 1) if version != NOT_SAMPLED), default=0)
        versions = np.array(self.versions[:count], np.int64)
        return Rollout(
            prompt=np.array(self.prompt, np.int32),
            tokens=np.array(self.tokens[:count], np.int32),
            sampled=versions != NOT_SAMPLED,
            log_probs=np.array(self.log_probs[:count], np.float32),
            versions=versions,
            ended=ended,
            grade=grade,
            attempt=attempt,
        )


class Conversation:
    """Begins with the messages of a row, with its tools. Raises Unrenderable where the chat template refuses them."""

    def __init__(self, row: Row, template: ChatTemplate, encoder: TurnEncoder):
        self.row, self._template, self._encoder = row, template, encoder
        self._text = template.prompt(row, len(row.messages))
        """The prompt of the present turn, as a server renders it of the messages."""
        self.parts = [ConversationPart(encoder.prompt(self._text))]
        self._said, self.ended = "", False
        """_said: the policy's last turn. ended: whether it came to its end."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.row.messages

    @property
    def context(self) -> list[int]:
        """All tokens so far."""
        return [*self.parts[-1].prompt, *self.parts[-1].tokens]

    def say(self, sampled: Sampled) -> tuple[dict[str, Any], str]:
        """(the policy's message, why it cannot be read). An unreadable message has what was said as its content."""
        ids = sampled.tokens.tolist()
        self.parts[-1].add(ids, sampled)
        self._said, self.ended = self._decoded(ids), sampled.ended
        text, problem = self._decoded(ids[:-1]) if sampled.ended else self._said, ""
        try:
            message = message_of(text, self._text, self.row.tools, self._encoder.specials)
        except UnusableAnswer as error:
            problem, message = str(error), error.message or {"role": "assistant", "content": text}
        before = sum(len(each.get("tool_calls") or ()) for each in self.messages)
        for number, call in enumerate(message.get("tool_calls") or (), before):
            call["id"] = f"call{number:05d}"  # unlike those of earlier turns
        self.row = replace(self.row, messages=[*self.messages, message])
        return message, problem

    def hear(self, messages: Sequence[dict[str, Any]]) -> None:
        """Goes on with messages that are not the policy's; after a turn that was cut, in another part, because its end was not
        sampled. Raises Unrenderable where the template refuses them."""
        said, row = self._turn() if self.ended else [], replace(self.row, messages=[*self.messages, *messages])
        text = self._template.prompt(row, len(row.messages))
        for answer in said:
            mark = max((mark for mark in self._encoder.specials if answer.endswith(mark)), key=len, default="")
            if mark and text.startswith(self._text + answer):
                self.parts[-1].add(self._encoder.after(mark, text[len(self._text) + len(answer) :]))
                break
        else:
            self.parts.append(ConversationPart(self._encoder.prompt(text)))
        self.row, self._text = row, text

    def _turn(self) -> list[str]:
        """Forms in which the template may repeat the policy's last turn: as it was said, as the template writes its message,
        and without the empty block of reasoning that some templates write for a last message only."""
        before = [{**message, "weight": 0} for message in self.messages[:-1]]
        try:
            (turn,) = learnt_turns(replace(self.row, messages=[*before, self.messages[-1]]), self._template)
        except Unrenderable:
            return [self._said]
        thinks = server_messages.without_block(self._said) != self._said
        return [self._said, turn.answer, *([] if thinks else [server_messages.without_block(turn.answer)])]

    def _decoded(self, ids: list[int]) -> str:
        return self._encoder.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
