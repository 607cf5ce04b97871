"""A teacher at an endpoint as a source of answers: within the budget, many requests at a time, each reply kept at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from model_ops.completions import Budget, BudgetError, Endpoint, RateLimiter
from model_ops.jobs import CheckFailed
from resources.composing.teachers.answer_store import AnswerRequest, AnswerStore, StoredAnswer, answer_requests
from resources.composing.teachers.settings import TeacherSettings
from resources.composing.teachers.token_logs import read_token_logs


class TeacherError(CheckFailed):
    """The teacher cannot be used, or its answers cost too much; the message says what was kept, and the remedy."""


class EndpointAnswers:
    """Answers of a teacher at an endpoint. Raises TeacherError where it cannot be used."""

    def __init__(self, settings: TeacherSettings, store: AnswerStore):
        self.settings, self.store = settings, store
        self.endpoint = Endpoint(
            settings.endpoint,
            "teacher",
            TeacherError,
            pace=RateLimiter(settings.requests_per_minute, settings.tokens_per_minute),
            budget=Budget(settings.price, settings.max_cost),
            tail="; answers up to now are kept",
        )

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
        def body(messages: list[dict[str, Any]], tools: Any, extra: dict[str, Any]) -> dict[str, Any]:
            return {**self.settings.sampling, **extra, "messages": messages, **({"tools": tools} if tools else {})}

        return answer_requests(row, self.settings, body)

    def begin(self, asked: Callable[[], Iterator[AnswerRequest]]) -> set[str]:
        """Counts what earlier answers to the same requests have cost; makes no answer."""
        self.endpoint.budget.spent = self.store.cost_of(each.key for each in asked())
        return set()

    def answers(self, asked: Iterable[AnswerRequest]) -> dict[str, StoredAnswer]:
        """Answers to requests, by key, each kept as soon as it is there. The first error ends all."""
        bodies = {each.key: each.body for each in asked}
        try:
            answers = dict(zip(bodies, self.endpoint.each(lambda key: self._ask(key, bodies[key]), bodies), strict=True))
        except BudgetError as error:
            spent = self.endpoint.budget.spent
            raise TeacherError(
                f"teacher: the next answer could pass max_cost ({self.settings.max_cost:g}): {spent:.4g} is spent, and all "
                "answers are kept; raise teacher.max_cost, or lower teacher.max_rows or max_tokens"
            ) from error
        if self.endpoint.gone:
            said = ", ".join(f"{count:,} {reason}" for reason, count in self.failed.most_common())
            raise TeacherError(
                f"teacher: {self.settings.base_url} does not answer (attempts: {said}); answers up to now are "
                "kept: run again when it is up"
            )
        return answers

    def _ask(self, key: str, body: dict[str, Any]) -> StoredAnswer:
        reply = self.endpoint.chat(body)
        logs = read_token_logs(reply.choice, self.settings.logprobs) if self.settings.logprobs else None
        if self.settings.logprobs and reply.message and not logs and not reply.message.get("tool_calls"):
            raise TeacherError(
                f"teacher: {self.settings.base_url} gave an answer without log-probabilities: serve the model "
                "where logprobs and top_logprobs are supported (vLLM: --max-logprobs of at least "
                f"{self.settings.logprobs}), or leave teacher.logprobs out to learn its text"
            )
        answer = StoredAnswer(
            self.settings.name,
            reply.message,
            reply.failure,
            reply.finish_reason,
            reply.prompt_tokens,
            reply.answer_tokens,
            reply.cost,
            logs.packed() if logs else None,
        )
        if not reply.retryable:
            self.store.keep(key, answer)
        return answer
