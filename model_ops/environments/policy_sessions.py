"""Sessions of agents that talk to the policy: which request goes on from which turn, by exact tokens.

    sessions = PolicySessions(tokenizer, longest_context=3_584, max_turns=8)
    session = sessions.begin("0:3:1", "row-3")            # session.key is the agent's
    turn = sessions.ask(key, messages, tools, None)       # from a thread of the server; turn.message() waits for the answer
    turns = sessions.waiting(running=8)                   # in the thread of the training: those to be sampled together
    turn.answer(sampled)

A request goes on from an earlier one where its messages begin with exactly what that one was asked and answered, its tools and
what else it gives the chat template are the same, and no other request went on from there: then both are one rollout, if the
chat template keeps the history (Conversation). Any other request is a further sample of the same attempt."""

import queue
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

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


GATHER_S = 0.05
"""How long a request waits for others to be sampled with, while agents are running that have asked nothing."""


class SessionError(Exception):
    """A request that cannot be answered; the text is for the agent. status: of HTTP. code: OpenAI's, by which agents know a
    context that is too long. param: the field that is refused."""

    def __init__(self, text: str, status: int = 400, code: str | None = None, param: str | None = None):
        super().__init__(text)
        self.status, self.code, self.param = status, code, param


@dataclass
class PolicySession:
    """The conversations of one attempt."""

    name: str
    row_id: str
    key: str
    talks: list[Conversation] = field(default_factory=list)
    earlier: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The messages up to each response, without its instructions, and the items of its output, by their ids."""
    turns: int = 0
    cut: bool = False
    """Whether a context or an answer was too long, or the agent asked too often."""
    lost: bool = False
    """Whether an answer came too late: the agent had closed its connection."""
    closed: bool = False


@dataclass
class PolicyTurn:
    """One request, until it is answered."""

    session: PolicySession
    talk: Conversation
    name: str
    most_tokens: int | None
    prompt_tokens: int
    lock: threading.Lock
    answered: queue.Queue[tuple[dict[str, Any], Sampled] | None] = field(default_factory=lambda: queue.Queue(1))

    def answer(self, sampled: Sampled) -> None:
        """Takes what the policy said, which the request's own limit may cut."""
        if self.most_tokens is not None and len(sampled.tokens) > self.most_tokens:
            sampled = sampled.cut(self.most_tokens)
        with self.lock:
            message, _ = self.talk.say(sampled)
            self.session.cut |= not sampled.ended
        self.answered.put((message, sampled))

    def give_up(self) -> None:
        """Ends the wait for an answer that nobody gives any more."""
        self.answered.put(None)

    def message(self) -> tuple[dict[str, Any], Sampled]:
        """What the policy said. Waits for it. Raises SessionError where the training ended meanwhile."""
        answer = self.answered.get()
        if answer is None:
            raise SessionError("the training ended", 503)
        return answer


class PolicySessions:
    """longest_context: most tokens that the policy answers. max_turns: most requests of a session."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, longest_context: int, max_turns: int):
        self._template, self._encoder = ChatTemplate.of(tokenizer), TurnEncoder(tokenizer)
        self._longest_context, self._max_turns = longest_context, max_turns
        self._by_key: dict[str, PolicySession] = {}
        self._asked: queue.Queue[PolicyTurn] = queue.Queue()
        self._lock = threading.Lock()  # neither the tokenizer nor a conversation may be used by two threads at once

    def begin(self, name: str, row_id: str) -> PolicySession:
        session = PolicySession(name, row_id, f"rollout-{secrets.token_hex(16)}")
        self._by_key[session.key] = session
        return session

    def session(self, key: str) -> PolicySession:
        """Raises SessionError for a key of no attempt that is going on."""
        session = self._by_key.get(key)
        if session is None:
            raise SessionError("this key belongs to no attempt that is going on", 401)
        return session

    def end(self, session: PolicySession) -> list[Conversation]:
        """Its conversations that have an answer. Later requests with its key are refused."""
        with self._lock:
            session.closed = True
            del self._by_key[session.key]
            return [talk for talk in session.talks if any(part.tokens for part in talk.parts)]

    def ask(
        self,
        key: str,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        most_tokens: int | None,
        variables: dict[str, Any] | None = None,
    ) -> PolicyTurn:
        """Puts a request into the next batch. variables: what it gives the chat template (Row.request). Raises SessionError for
        one that cannot be answered."""
        session = self.session(key)
        with self._lock:
            if unread := self._template.unread(variables or {}):
                text = f"{unread[0][:80]}, which the request gives the chat template, is not read by it: leave it out"
                raise SessionError(text, param=unread[0])
            if session.turns == self._max_turns:
                session.cut = True
                raise SessionError(f"this attempt has asked {self._max_turns} times, as often as rft.max_turns allows")
            try:
                talk = self._talk(session, Row(session.row_id, list(messages), list(tools or []) or None, request=variables))
            except (Unrenderable, ValueError) as error:
                raise SessionError(f"the chat template refuses the messages: {error}") from error
            if len(talk.context) > self._longest_context:
                session.cut = True
                text = (
                    f"the context has {len(talk.context)} tokens; the model's maximum context length is {self._longest_context}"
                )
                raise SessionError(text, code="context_length_exceeded")
            name = f"{session.name}:{session.turns}"
            turn = PolicyTurn(session, talk, name, most_tokens, len(talk.context), self._lock)
            session.turns += 1
        self._asked.put(turn)
        return turn

    def waiting(self, running: int) -> list[PolicyTurn]:
        """Requests to be sampled together: of all running agents, or those that came within GATHER_S of each other. Waits no
        longer than that for the first one. Requests of agents that have ended are left out."""
        turns: list[PolicyTurn] = []
        while len(turns) < running:
            try:
                turns.append(self._asked.get(timeout=GATHER_S))
            except queue.Empty:
                break
        for turn in turns:
            if turn.session.closed:
                turn.give_up()
        return [turn for turn in turns if not turn.session.closed]

    def _talk(self, session: PolicySession, asked: Row) -> Conversation:
        """The conversation that the messages go on from, with what is new in them; else a new one."""
        messages, said = asked.messages, server_messages.as_read(asked.messages)
        for talk in session.talks:
            before, row = len(talk.messages), talk.row
            is_like = (row.tools, row.request, row.messages[-1]["role"]) == (asked.tools, asked.request, "assistant")
            goes_on = is_like and before < len(messages)
            if goes_on and server_messages.as_read(talk.messages) == said[:before]:
                talk.hear(messages[before:])
                return talk
        bare = replace(asked, tools=None)
        if asked.tools and self._template.prompt(asked, len(messages)) == self._template.prompt(bare, len(messages)):
            raise SessionError(
                "tools are given, and the chat template writes none: the model would not see them", param="tools"
            )
        talk = Conversation(asked, self._template, self._encoder)
        session.talks.append(talk)
        return talk
