"""Scores cleaned rows, with personal data replaced, for quality and difficulty with a judge model: the table `judgements`. A
text is judged once per model and prompt; replies are committed every few hundred rows. A row without a score (`answer` says
why) is sent again next time."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from model_ops.jobs import counted
from resources.curating.judge_endpoint import SCORES, JudgeEndpoint, JudgeError, JudgeReply, JudgeSettings
from resources.lake import SCHEMAS, Tables, attach_slice, rows, run, workbench

AT_A_TIME = 256
"""Rows between commits."""

NONSENSE = 32
"""Stops the run after this many replies between two commits without a single score."""


@dataclass
class JudgeReport:
    wanted: int = 0
    """Distinct texts to judge."""
    known: int = 0
    """Texts that were scored before."""
    scored: int = 0
    unscored: int = 0
    """`scored`, `unscored`: texts sent in this run."""

    def as_metrics(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    tables: Tables, workload: str, settings: JudgeSettings, tell: Callable[[str], None] = lambda said: None
) -> JudgeReport:
    """Sends every wanted text without scores to the judge. Raises JudgeError where the endpoint cannot be reached, refuses, or
    gives no scores; scores up to then are kept."""
    asked_with = {"model": settings.model, "prompt_sha256": settings.prompt_sha256}
    report = JudgeReport()
    with workbench() as connection:
        attach_slice(connection, tables, "cleaned_interactions", workload)
        attach_slice(connection, tables, "judgements", workload)
        run(connection, "curating/judge/texts_to_judge", max_rows=settings.max_rows, **asked_with)
        report.wanted, report.known = run(connection, "curating/judge/counts").fetchall()[0]
        waiting = rows(connection, "curating/judge/not_scored")
        if not len(waiting):
            return report
        with JudgeEndpoint(settings) as judging:
            for first in range(0, len(waiting), AT_A_TIME):
                ids = waiting["interaction_id"].slice(first, AT_A_TIME).to_pylist()
                part = rows(connection, "curating/judge/texts", ids=ids).to_pylist()
                _judge_part(tables, judging, part, report)
                tell(
                    f"{counted(report.scored, 'row')} judged, {report.unscored:,} without a score, "
                    f"{report.wanted - report.known:,} wanted"
                )
    _keep_one_each(tables, workload)
    return report


def _judge_part(tables: Tables, judging: JudgeEndpoint, part: list[dict[str, Any]], report: JudgeReport) -> None:
    settings = judging.settings
    replies: list[JudgeReply] = []
    refused: JudgeError | None = None
    try:
        for reply in judging.endpoint.each(lambda row: judging.ask(row["messages"], row["completion"]), part):
            replies.append(reply)
    except JudgeError as error:
        refused = error
    answered = list(zip(part, replies, strict=False))
    if answered:
        tables.append("judgements", pa.Table.from_pylist(list(_records(answered, settings)), schema=SCHEMAS["judgements"]))
    scored = sum(reply.complete for reply in replies)
    report.scored += scored
    report.unscored += len(replies) - scored
    if refused is not None:
        raise refused
    if replies and (judging.endpoint.gone or all(reply.unreachable for reply in replies)):
        first = next((reply.answer for reply in replies if reply.unreachable), replies[-1].answer)
        raise JudgeError(
            f"the judge at {settings.base_url} does not answer ({first}): {counted(report.scored, 'row')} "
            f"{'was' if report.scored == 1 else 'were'} judged and kept, "
            f"{report.wanted - report.known - report.scored:,} are not judged yet; run again when it is up"
        )
    if len(replies) >= NONSENSE and not scored:
        reason = Counter(reply.answer if reply.no_text else "no scores in its text" for reply in replies).most_common(1)[0][0]
        raise JudgeError(
            f"the judge {settings.model} at {settings.base_url} gave no score in {counted(len(replies), 'reply')} "
            f"(mostly: {reason}): check its prompt, `request` (max_tokens) and the column `answer` of the table judgements"
        )


def _records(answered: list[tuple[dict[str, Any], JudgeReply]], settings: JudgeSettings) -> Iterator[dict[str, Any]]:
    now = datetime.now(UTC)
    for row, reply in answered:
        for name in SCORES:
            yield {
                **{column: row[column] for column in ("workload", "dt", "interaction_id", "content_sha256")},
                "name": name,
                "score": getattr(reply, name),
                "model": settings.model,
                "prompt_sha256": settings.prompt_sha256,
                "prompt": settings.prompt,
                "answer": reply.answer,
                "ts": now,
            }


def _keep_one_each(tables: Tables, workload: str) -> None:
    with workbench() as connection:
        attach_slice(connection, tables, "judgements", workload)
        days = [day for (day,) in run(connection, "curating/judge/days_with_repeats").fetchall()]
        for day in days:
            tables.replace("judgements", rows(connection, "curating/judge/without_repeats", dt=day), workload=workload, dt=day)
