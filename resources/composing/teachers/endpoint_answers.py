"""A teacher at an endpoint as a source of answers: within the budget, many requests at a time, each reply kept at once.

with EndpointAnswers(settings, kept) as source:
    source.begin(asked)                 # every request of the dataset, for what earlier answers have cost
    source.answers({asked.key: asked})  # {key: StoredAnswer}
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from resources.composing.teachers.endpoint import Budget, BudgetError, TeacherEndpoint, TeacherError
from resources.composing.teachers.kept_answers import AnswerStore, StoredAnswer
from resources.composing.teachers.requests import AnswerRequest, answer_requests
from resources.composing.teachers.settings import TeacherSettings


class EndpointAnswers:
    """Answers of a teacher at an endpoint. Raises TeacherError where it cannot be used."""

    def __init__(self, settings: TeacherSettings, kept: AnswerStore):
        self.settings, self.kept = settings, kept
        self.endpoint = TeacherEndpoint(settings)
        self.budget = Budget(settings.price, settings.max_cost)
        self._stop = threading.Event()

    def __enter__(self) -> EndpointAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        self.endpoint.__exit__()

    @property
    def failed(self) -> Counter[str]:
        return self.endpoint.failed

    @property
    def without_usage(self) -> int:
        return self.endpoint.without_usage

    def asked_of(self, row: dict[str, Any]) -> list[AnswerRequest]:
        """The requests of a row, one for each answer."""
        return answer_requests(row, self.settings, self.endpoint.body)

    def begin(self, asked: Callable[[], Iterator[AnswerRequest]]) -> set[str]:
        """Counts what earlier answers to the same requests have cost; makes no answer."""
        self.budget.spent = self.kept.cost_of(each.key for each in asked())
        return set()

    def answers(self, asked: Iterable[AnswerRequest]) -> dict[str, StoredAnswer]:
        """Answers to requests, by key, each kept as soon as it is there. Stops all threads with the first error."""
        bodies = {each.key: each.body for each in asked}

        def answer(key: str) -> tuple[str, StoredAnswer | None]:
            try:
                return key, None if self._stop.is_set() else self._ask(key, bodies[key])
            except BaseException:
                self._stop.set()
                raise

        pool = ThreadPoolExecutor(self.settings.concurrency)
        try:
            found = list(pool.map(answer, bodies))
        except BudgetError as error:
            pool.shutdown(cancel_futures=True)  # the costs of what is on its way belong to the sentence
            raise TeacherError(
                f"teacher: the next answer could pass max_cost ({self.settings.max_cost:g}): {self.budget.spent:.4g} is spent, "
                f"and all answers are kept; raise teacher.max_cost, or lower teacher.max_rows or max_tokens"
            ) from error
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            self._stop.clear()
        if self.endpoint.gone:
            said = ", ".join(f"{count:,} {reason}" for reason, count in self.endpoint.failed.most_common())
            raise TeacherError(
                f"teacher: {self.settings.base_url} does not answer (attempts: {said}); answers up to now are "
                "kept: run again when it is up"
            )
        return {key: answer for key, answer in found if answer is not None}

    def _ask(self, key: str, body: dict[str, Any]) -> StoredAnswer:
        with self.budget.reserved(len(json.dumps(body)), self.settings.max_tokens) as bill:
            reply = self.endpoint.ask(body, bill)
        answer = StoredAnswer(
            self.settings.name,
            reply.message,
            reply.failure,
            reply.finish_reason,
            reply.prompt_tokens,
            reply.answer_tokens,
            bill.cost,
            reply.logprobs and reply.logprobs.packed(),
        )
        if not reply.mendable:
            self.kept.keep(key, answer)
        return answer
