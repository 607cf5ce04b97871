"""Attempts in environments, turn by turn, and of a user's own agent, which asks the policy at an address as any server.

All attempts of an agent run at the same time, each in a process and with a key of its own. One that raises, hangs, ends its
process, closes its connection or asks nothing leaves no grade."""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from model_ops.answers import Engine, Rollout, RolloutLog, Sampled, SampledPrompt
from model_ops.environments.environment_processes import EnvironmentProcesses, EnvironmentReply, ForkedEnvironment
from model_ops.environments.policy_sessions import Conversation, ConversationPart, PolicySession, PolicySessions, PolicyTurn
from model_ops.graders import Failures, Grade
from model_ops.jobs import ModelError, Progress
from model_ops.rendering import ChatTemplate, Row, TurnEncoder, Unrenderable, learnt_turns
from model_ops.tasks import UNREADABLE_CALL

MOST_ACTIVE = 256
"""Attempts at a time: each is a process, and an open file of this one."""
Attempt = tuple[str, SampledPrompt, int]
"""Its key in the log, its prompt, and its number among the attempts at the prompt."""


class AttemptMaker(ABC):
    """A RolloutMaker. log: keeps the attempts; None keeps them in memory for one call. answers: attempts at each prompt."""

    def __init__(self, processes: EnvironmentProcesses, log: RolloutLog | None, progress: Progress, answers: int):
        self.answers, self._processes, self._log, self._progress = answers, processes, log, progress
        self._ended: dict[str, list[Rollout]] = {}
        self.failures = Failures(f"the {processes.name}")

    def rollouts(
        self, prompts: Sequence[SampledPrompt], names: Sequence[str], engine: Engine, seed: int
    ) -> list[list[Rollout]]:
        """As RolloutMaker.rollouts. An attempt has a rollout for each context that does not go on from another. Raises
        ModelError where most attempts have failed."""
        asked = [
            [(f"{name}:{number}", prompt, number) for number in range(self.answers)]
            for prompt, name in zip(prompts, names, strict=True)
        ]
        self._ended = {
            key: rollouts
            for group in asked
            for key, _, _ in group
            if self._log is not None and (rollouts := self._log.attempt(key)) is not None
        }
        left = [attempt for group in asked for attempt in group if attempt[0] not in self._ended]
        for begin in range(0, len(left), MOST_ACTIVE):
            self._play(left[begin : begin + MOST_ACTIVE], engine, seed)
        groups = [[self._ended[key] for key, _, _ in group] for group in asked]
        for prompt, attempts in zip(prompts, groups, strict=True):
            self.failures.count(prompt.row_id, [attempt[-1].grade for attempt in attempts])
        return [[rollout for attempt in attempts for rollout in attempt] for attempts in groups]

    @abstractmethod
    def _play(self, attempts: Sequence[Attempt], engine: Engine, seed: int) -> None:
        """Makes attempts, and calls `_keep` for each as it ends."""

    def _keep(self, key: str, rollouts: list[Rollout]) -> None:
        if self._log is not None:
            self._log.add_attempts({key: rollouts})
        self._ended[key] = rollouts


UNREADABLE = {
    "role": "tool",
    "tool_call_id": "call00000",
    "content": '{"error": "the call cannot be read: give its name and arguments in the form that you were told"}',
}


@dataclass
class EnvironmentAttempt:
    """One attempt while it goes on."""

    name: str
    prompt: SampledPrompt
    number: int
    """Among the attempts at the prompt."""
    environment: ForkedEnvironment
    talk: Conversation | None = None
    """None before the environment is reset."""
    over: bool = False
    ended: bool = False
    """Whether it came to its end, before a limit."""
    problem: str = ""

    def rollouts(self, grade: Grade) -> list[Rollout]:
        parts = self.talk.parts if self.talk is not None else [ConversationPart(self.prompt.ids)]
        return [part.rollout(self.ended, grade, self.number) for part in parts]

    @property
    def conversation(self) -> Conversation:
        """Raises RuntimeError before the environment is reset."""
        if self.talk is None:
            raise RuntimeError(f"attempt {self.name} has no conversation before its reset")
        return self.talk

    def stop(self, ended: bool = False, problem: str = "") -> None:
        self.over, self.ended, self.problem = True, ended, problem

    def hear(self, *messages: dict[str, Any]) -> None:
        """Goes on with messages for the policy. Where the template takes no reply to a call that it does not see, a user gives
        it."""
        try:
            self.conversation.hear(messages)
        except Unrenderable:
            if messages != (UNREADABLE,):
                return self.stop(problem="said what the chat template refuses")
            self.hear({"role": "user", "content": UNREADABLE["content"]})


class EnvironmentRollouts(AttemptMaker):
    """longest_context: most tokens that the policy answers. Raises ModelError for an environment that cannot be used, with this
    model or at all."""

    def __init__(
        self,
        processes: EnvironmentProcesses,
        tokenizer: PreTrainedTokenizerBase,
        log: RolloutLog | None,
        progress: Progress,
        *,
        answers: int,
        max_turns: int,
        longest_context: int,
    ):
        super().__init__(processes, log, progress, answers)
        self._max_turns, self._longest_context = max_turns, longest_context
        self._template, self._encoder = ChatTemplate.of(tokenizer), TurnEncoder(tokenizer)
        self._tools = processes.about.tools or None
        if not processes.about.rewards:
            raise ModelError(f"the {processes.name} has no method reward, so nobody grades its attempts")
        if self._tools and not writes_tools(self._template, self._tools):
            raise ModelError(
                f"the {processes.name} has tools, and the model's chat template does not write calls and their "
                "results: choose a model whose template does"
            )

    def _play(self, attempts: Sequence[Attempt], engine: Engine, seed: int) -> None:
        begun = [EnvironmentAttempt(*attempt, self._processes.begin()) for attempt in attempts]
        for attempt, said in self._asked(
            begun, "reset", lambda attempt: {"reset": row_of(attempt.prompt), "seed": seed_of(attempt.name, seed)}
        ):
            self._begin(attempt, said)
        active = self._going_on(begun)
        for turn in range(self._max_turns):
            for attempt in active:
                if len(attempt.conversation.context) > self._longest_context:
                    attempt.stop()
            active = self._going_on(active)
            if not active:
                return
            self._progress.stop_if_requested()
            self._progress.part("rollouts", turn, self._max_turns, "turns")
            contexts = [np.array(attempt.conversation.context, np.int32) for attempt in active]
            self._turn(active, engine.sample(contexts, [f"{attempt.name}:{turn}" for attempt in active], seed))
            active = self._going_on(active)
        for attempt in active:
            attempt.stop()
        self._going_on(active)

    def _begin(self, attempt: EnvironmentAttempt, said: Any) -> None:
        """Begins the conversation with the row's messages and what `reset` returned."""
        *before, last = attempt.prompt.messages
        if isinstance(said, list) and all(isinstance(message, dict) for message in said):
            messages = [*before, last, *said]
        elif said is None or isinstance(said, str):
            messages = [*before, {**last, "content": f"{last.get('content') or ''}{said or ''}"}]
        else:
            return attempt.stop(problem="reset returned neither text nor messages")
        row = Row(attempt.prompt.row_id, messages, self._tools)
        try:
            attempt.talk = Conversation(row, self._template, self._encoder)
        except Unrenderable:
            attempt.stop(problem="reset returned what the chat template refuses")

    def _turn(self, attempts: Sequence[EnvironmentAttempt], sampled: Sequence[Sampled]) -> None:
        """What the policy said, and what the environment answers to it."""
        calling, speaking = [], []
        for attempt, answer in zip(attempts, sampled, strict=True):
            message, problem = attempt.conversation.say(answer)
            if not answer.ended:
                attempt.stop()
            elif problem == UNREADABLE_CALL:
                attempt.hear(UNREADABLE)
            elif message.get("tool_calls"):
                calling.append(attempt)
            elif self._processes.about.replies and not problem:
                speaking.append(attempt)
            else:
                attempt.stop(ended=True)
        for attempt, texts in self._asked(
            calling, "a tool", lambda attempt: {"calls": [_read(call) for call in _calls(attempt)]}
        ):
            attempt.hear(*(_result(call, text) for call, text in zip(_calls(attempt), texts, strict=True)))
        for attempt, said in self._asked(speaking, "reply", lambda attempt: {"reply": attempt.conversation.messages[-1]}):
            if said is None:
                attempt.stop(ended=True)
            elif isinstance(said, str):
                attempt.hear({"role": "user", "content": said})
            else:
                attempt.stop(problem="reply returned no text")

    def _going_on(self, attempts: Sequence[EnvironmentAttempt]) -> list[EnvironmentAttempt]:
        """The attempts that are not over; the others are graded and kept."""
        over = [attempt for attempt in attempts if attempt.over]
        grades = {}
        for attempt, said in self._asked(
            [attempt for attempt in over if not attempt.problem],
            "reward",
            lambda attempt: {"reward": attempt.conversation.messages},
        ):
            grades[attempt.name] = Grade.of(said)
        for attempt in over:
            self._processes.end(attempt.environment)
            grade = Grade(problem=attempt.problem) if attempt.problem else grades[attempt.name]
            self._keep(attempt.name, attempt.rollouts(grade))
        return [attempt for attempt in attempts if not attempt.over]

    def _asked(
        self, attempts: Sequence[EnvironmentAttempt], what: str, request: Callable[[EnvironmentAttempt], dict[str, Any]]
    ) -> Iterator[tuple[EnvironmentAttempt, Any]]:
        """What the environments answer; one that has a problem stops its attempt."""
        replies = self._processes.ask_all([(attempt.environment, request(attempt)) for attempt in attempts])
        for attempt, reply in zip(attempts, replies, strict=True):
            if reply.problem:
                attempt.stop(problem=f"{what} {reply.problem}")
            else:
                yield attempt, reply.said


def writes_tools(template: ChatTemplate, tools: list[dict[str, Any]]) -> bool:
    """Whether a chat template writes a call of a tool, and its result."""
    call = {"id": "call00000", "type": "function", "function": {"name": tools[0]["function"]["name"], "arguments": "{}"}}
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "QUESTION"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    try:
        learnt_turns(Row("probe", said, tools), template)
        return "RESULT" in template.prompt(Row("probe", [*said, _result(call, "RESULT")], tools), 3)
    except Unrenderable:
        return False


def row_of(prompt: SampledPrompt) -> dict[str, Any]:
    """What the user's file is told of a prompt: the columns of its row."""
    return {**prompt.columns, "row_id": prompt.row_id, "prompt": prompt.messages}


def seed_of(name: str, seed: int) -> str:
    """Of the random numbers of the user's file: the same for all attempts at a prompt, so that they meet the same world."""
    return f"{seed}:{name.rpartition(':')[0]}"


def _calls(attempt: EnvironmentAttempt) -> list[dict[str, Any]]:
    return attempt.conversation.messages[-1]["tool_calls"]


def _read(call: dict[str, Any]) -> dict[str, Any]:
    return {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}


def _result(call: dict[str, Any], text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}


class AgentRollouts(AttemptMaker):
    """base_url: of the sessions' server."""

    def __init__(
        self,
        processes: EnvironmentProcesses,
        sessions: PolicySessions,
        base_url: str,
        log: RolloutLog | None,
        progress: Progress,
        *,
        answers: int,
    ):
        super().__init__(processes, log, progress, answers)
        self._sessions, self._base_url = sessions, base_url

    def _play(self, attempts: Sequence[Attempt], engine: Engine, seed: int) -> None:
        sessions = [self._sessions.begin(name, prompt.row_id) for name, prompt, _ in attempts]
        forks = [self._processes.begin() for _ in attempts]
        left = set(range(len(attempts)))

        def over(place: int, reply: EnvironmentReply) -> None:
            if place not in left:
                return
            left.discard(place)
            self._processes.end(forks[place])
            self._grade(attempts[place], sessions[place], reply)

        requests = [
            (
                fork,
                {
                    "run": {"row": row_of(prompt), "base_url": self._base_url, "api_key": session.key},
                    "seed": seed_of(name, seed),
                },
            )
            for fork, session, (name, prompt, _) in zip(forks, sessions, attempts, strict=True)
        ]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._processes.ask_all, requests, len(requests), over)
            try:
                while not running.done():
                    self._progress.stop_if_requested()
                    if turns := self._sessions.waiting(max(1, len(left))):
                        self._progress.part("rollouts", len(attempts) - len(left), len(attempts), "attempts")
                        self._answer(turns, forks, engine, seed)
            except BaseException:
                left.clear()  # agents that end now have not failed
                raise
            finally:
                for fork in forks:
                    fork.kill()
        running.result()

    def _answer(self, turns: Sequence[PolicyTurn], forks: Sequence[ForkedEnvironment], engine: Engine, seed: int) -> None:
        """Samples what the agents ask. The time that it takes is not theirs: their clocks stand still."""
        left_s = [fork.until_s - time.monotonic() for fork in forks]
        for fork in forks:
            fork.until_s = math.inf
        try:
            contexts = [np.array(turn.talk.context, np.int32) for turn in turns]
            said = engine.sample(contexts, [turn.name for turn in turns], seed)
        except BaseException:
            for turn in turns:
                turn.give_up()
            raise
        for fork, left in zip(forks, left_s, strict=True):
            fork.until_s = time.monotonic() + left
        for turn, sampled in zip(turns, said, strict=True):
            turn.answer(sampled)

    def _grade(self, attempt: Attempt, session: PolicySession, reply: EnvironmentReply) -> None:
        key, prompt, number = attempt
        talks = self._sessions.end(session)
        problem = reply.problem or ("closed its connection before the answer" if session.lost else "")
        problem = problem or ("" if talks else "asked the model nothing")
        grade = Grade(problem=problem) if problem else Grade.of(reply.said)
        if session.cut and (reply.problem or not talks):  # a limit ended it, as it was told: no failure
            grade = Grade()
        parts = [part for talk in talks for part in talk.parts if part.tokens] or [ConversationPart(prompt.ids)]
        self._keep(key, [part.rollout(not session.cut and not problem, grade, number) for part in parts])
