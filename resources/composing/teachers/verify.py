"""Scores answers by the checks of evaluation suites (model_ops/tasks/), for rejection sampling. What is right comes from the
row: the logged answer (number, exact, function_call), its request's schema (json_schema), or the verifier of a row of
rl_prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from model_ops.graders import AskedGroup, GradedAnswer, GraderPart, check_all
from model_ops.tasks import (
    SCORERS,
    ExactItem,
    FunctionCallItem,
    JsonItem,
    NumberItem,
    RegexItem,
    accepted_calls,
    calls_as_text,
    logged_number,
)
from resources.composing.teachers.answer_store import AnswerStore, StoredAnswer, request_key
from resources.composing.teachers.endpoint_answers import TeacherError
from resources.composing.teachers.settings import VerifySettings
from resources.curating import JudgeEndpoint, JudgeError, JudgeSettings

Row = dict[str, Any]
Message = dict[str, Any]


class Verifier:
    """Scores answers of one recipe. A judge's scores are kept as answers are: asked for once."""

    def __init__(self, settings: VerifySettings, judge: JudgeSettings | None, store: AnswerStore):
        self.settings, self._store = settings, store
        self._judge = None
        if settings.kind == "judge":
            if judge is None:
                raise TeacherError("teacher.verify is judge, and the recipe names none: set curation.judge")
            try:
                self._judge = JudgeEndpoint(judge)
            except JudgeError as error:
                raise TeacherError(str(error)) from error

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        if self._judge is not None:
            self._judge.__exit__()

    def scores(self, asked: list[tuple[Row, Message]]) -> list[float | None]:
        """The scores of several answers; a judge is asked for many at a time. Raises TeacherError if it does not answer,
        ModelError where programs cannot be locked down."""
        if self.settings.kind == "verifier":
            return [grades[0].value for grades in check_all(GraderPart(by="verifier"), [_to_verify(*each) for each in asked])]
        if self._judge is None:
            return [self.score(row, message) for row, message in asked]
        try:
            return list(self._judge.endpoint.each(lambda each: self.score(*each), asked))
        except JudgeError as error:
            raise TeacherError(f"{error}; answers and scores up to now are kept") from error

    def score(self, row: Row, message: Message) -> float | None:
        """The score of an answer to a row's prompt; None if the row has nothing to verify with, or the judge gave no score."""
        if self._judge is not None:
            return judged_quality(self._judge, self._store, json.dumps(json.loads(row["messages"])[:-1]), json.dumps(message))
        logged = json.loads(row["messages"])[-1]
        text = message.get("content") or ""
        said, score = {"suite": "teacher", "item_id": row["row_id"], "messages": []}, SCORERS[self.settings.kind]
        try:
            match self.settings.kind:
                case "regex":
                    return score(RegexItem(**said, pattern=self.settings.pattern), text)
                case "number":
                    value = logged_number(_text(logged))
                    return None if value is None else score(NumberItem(**said, answer=str(value)), text)
                case "exact":
                    wanted = _text(logged)
                    return score(ExactItem(**said, answer=wanted), text) if wanted.strip() else None
                case "json_schema":
                    schema = _schema_of(row)
                    return None if schema is None else score(JsonItem(**said, json_schema=schema), text)
                case _:
                    accepted = accepted_calls(logged)
                    return score(FunctionCallItem(**said, accepted=accepted), calls_as_text(message)) if accepted else None
        except (ValidationError, ValueError):  # a schema that is none, arguments that are no JSON object
            return None


def judged_quality(judge: JudgeEndpoint, store: AnswerStore, before: str, answer: str) -> float | None:
    """The judge's quality of an answer (JSON text) to the messages before it, 1 to 10; None for a reply without one. A score is
    kept and asked for once. Raises JudgeError where the judge does not answer."""
    settings = judge.settings
    key = request_key(
        settings.model, [{"prompt": settings.prompt_sha256, "before": before, "answer": answer}], None, settings.request
    )
    known = store.find(key)
    if known is not None and known.message is not None:
        return known.message["quality"]
    reply = judge.ask(before, answer)
    if reply.unreachable:
        raise JudgeError(f"the judge at {settings.base_url} does not answer ({reply.answer}): run again when it is up")
    if reply.quality is not None:
        store.keep(key, StoredAnswer(settings.model, {"quality": reply.quality}, "", "judge", 0, 0, 0.0))
    return reply.quality


def _to_verify(row: Row, message: Message) -> AskedGroup:
    """An answer to a row of rl_prompts, with what the row brings."""
    brought = json.loads(row["verifier"] or "null")
    columns = brought if isinstance(brought, dict) else {}
    return AskedGroup(row["row_id"], [], None, columns, [GradedAnswer(_text(message), message)])


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _schema_of(row: Row) -> Any:
    asked = json.loads(row["request"]).get("response_format") if row["request"] else None
    return (asked.get("json_schema") or {}).get("schema") if isinstance(asked, dict) else None


@dataclass(frozen=True)
class AnswerCandidate:
    """One answer."""

    sample: int
    key: str
    """Key of its request."""
    answer: StoredAnswer
    score: float | None = None
    """None if it was not, or could not be, verified."""


def choose(
    candidates: Sequence[AnswerCandidate], settings: VerifySettings | None, seed: int, row_id: str
) -> AnswerCandidate | None:
    """The answer that is kept. Where nothing can score: the first by seed, unless the settings drop such rows."""

    def drawn(candidate: AnswerCandidate) -> str:
        return hashlib.sha256(f"{seed} {row_id} {candidate.sample}".encode()).hexdigest()

    usable = [each for each in candidates if each.answer.message is not None]
    scored = [(score, each) for each in usable if (score := each.score) is not None]
    if settings is None or not scored:
        keeps = settings is None or settings.keeps_unverifiable
        return min(usable, key=drawn, default=None) if keeps else None
    best = max(score for score, _ in scored)
    return None if best < settings.least else min((each for score, each in scored if score == best), key=drawn)


def rejected(
    candidates: Sequence[AnswerCandidate], chosen: AnswerCandidate | None, settings: VerifySettings | None
) -> list[AnswerCandidate]:
    """Answers below the least score where another one was kept for its score: each is the rejected half of a preference."""
    if settings is None or chosen is None or chosen.score is None:
        return []
    texts = {chosen.answer.message_text}
    wrong = []
    for each in candidates:
        if each.score is not None and each.score < settings.least and each.answer.message_text not in texts:
            texts.add(each.answer.message_text)
            wrong.append(each)
    return wrong
