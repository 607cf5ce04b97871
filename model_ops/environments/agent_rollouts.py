"""Attempts of a user's own agent, which asks the policy at an address, as it would ask any server.

The agent is a function `run(row, base_url, api_key)` of a file, async or not, that returns a grade. All attempts of a call run
at the same time, each in a process and with a key of its own; what they ask at about the same time is sampled together. An
agent that raises, hangs, ends its process, closes its connection or asks nothing leaves no grade.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from model_ops.answers import Engine, RolloutLog
from model_ops.environments.attempt_maker import Attempt, AttemptMaker
from model_ops.environments.conversation import ConversationPart
from model_ops.environments.environment_processes import EnvironmentProcesses, EnvironmentReply, ForkedEnvironment
from model_ops.environments.environment_rollouts import row_of, seed_of
from model_ops.environments.policy_sessions import PolicySession, PolicySessions, PolicyTurn
from model_ops.graders import Grade
from model_ops.jobs import Progress


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
