"""Operation `generate`: the target's own answers to prompts of the traffic, on which its drafter is trained.

    {"operation": "generate", "inputs": {"target": MODEL, "dataset": DATASET, "served": SERVED}, "output": DIR, ...}

The target answers each turn of train.parquet and validation.parquet, with its own earlier answers in the history. Where
SERVED/served.parquet (optional) shows that these weights generated the logged answer, its token ids are used; otherwise the
target answers with the request's sampling parameters, unless the settings override them. The output has the same two files with
ANSWER_ROWS; their metadata holds the digests of the target and its vocabulary. The input `previous` (optional) is an earlier
output: its answers to the same prompts by the same target are taken again. A killed run answers no prompt twice."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from model_ops.answers import AnswerLog
from model_ops.completions import (
    CompletionTokens,
    Dialogue,
    EarlierAnswers,
    GenerateSettings,
    LoggedTokenIds,
    Sampling,
    ServedAnswers,
    answerers,
    choose_conversations,
    read_conversations,
)
from model_ops.files import bare, renamed_when_complete, target_digest, vocabulary_digest, weight_file_stamps
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import end_of_text_ids, load_tokenizer, read_config
from model_ops.operations.limit_rows import ANSWER_ROWS
from model_ops.rendering import Unrenderable

TEMPERATURES_SHOWN = 16


@dataclass
class TurnCounts:
    """Counts of turns: asked = answered + too_long + the sums of refused and unrenderable."""

    asked: int = 0
    too_long: int = 0
    generated_tokens: int = 0
    reused: int = 0
    """Turns that an earlier version had answered."""
    unrenderable: Counter[str] = field(default_factory=Counter)
    """Turns whose messages the chat template refuses, by reason."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused turns by the parameter that the answerer does not support."""
    temperatures: Counter[str] = field(default_factory=Counter)


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Writes answers of inputs["target"] to the conversations of inputs["dataset"]; returns counts and speed."""
    settings = job.settings_as(GenerateSettings)
    target, dataset = job.inputs["target"], job.inputs["dataset"]
    tokenizer = load_tokenizer(target)
    served = ServedAnswers({}, target)
    if "served" in job.inputs:
        served = ServedAnswers.read(job.inputs["served"] / "served.parquet", target, settings.served_as)
    earlier = EarlierAnswers.read(job.inputs.get("previous"), target)
    chosen: dict[str, list[Dialogue]] = {}
    for name in ("train", "validation"):
        if name == "train" or (dataset / f"{name}.parquet").exists():
            limit = settings.prompts
            if limit is not None and name == "validation":
                limit = max(1, limit // 10)
            chosen[name] = choose_conversations(read_conversations(dataset, name, tokenizer), limit, settings.seed)
    job.output.mkdir(parents=True, exist_ok=True)
    started_s, counts, tables = time.monotonic(), TurnCounts(), {}
    counts.asked = sum(len(each.turns) for conversations in chosen.values() for each in conversations)
    log_path = job.output / ".work" / "answers.jsonl"
    with answerers.answerer(target, settings) as answers, AnswerLog(log_path) as log:
        session = _Session(job, settings, tokenizer, served, earlier, answers, log, counts, progress)
        for name, conversations in chosen.items():
            tables[name] = session.answer_all(name, conversations)
    answered = sum(table.num_rows for table in tables.values())
    if not answered:
        raise ModelError(_why_nothing(dataset, counts, session.positions))
    if counts.refused:
        progress.event(
            "note",
            message=f"generate: {counts.refused.total()} of {counts.asked} turns were served with "
            f"{', '.join(counts.refused)}, which is not done here: left out; an endpoint may do it",
        )
    about = {"target_digest": target_digest(target), "vocabulary_digest": vocabulary_digest(target)}
    metrics: dict[str, Any] = {}
    for name, table in tables.items():
        _write(table.replace_schema_metadata(about), job.output / f"{name}.parquet")
        metrics.update(_measures(name, table))
    seconds = time.monotonic() - started_s
    return {
        **metrics,
        "answers_reused": counts.reused,
        "prompts_too_long": counts.too_long,
        "prompts_refused": dict(counts.refused),
        "prompts_unrenderable": dict(counts.unrenderable),
        "temperatures": dict(counts.temperatures.most_common(TEMPERATURES_SHOWN)),
        "seconds": seconds,
        "answer_tokens": sum(metrics[f"{name}_answer_tokens"] for name in tables),
        "tokens_per_second": counts.generated_tokens / seconds if counts.generated_tokens else 0.0,
    }


class _Session:
    """Answers every turn of a split's conversations: all first turns, then all second ones, and so on."""

    def __init__(
        self,
        job: Job,
        settings: GenerateSettings,
        tokenizer: PreTrainedTokenizerBase,
        served: ServedAnswers,
        earlier: EarlierAnswers,
        answers: answerers.Answerer,
        log: AnswerLog,
        counts: TurnCounts,
        progress: Progress,
    ):
        self.settings, self.tokenizer, self.served, self.earlier = settings, tokenizer, served, earlier
        self.answers, self.log, self.counts, self.progress = answers, log, counts, progress
        target = job.inputs["target"]
        self.positions, self.vocabulary = answers.positions, read_config(target)["vocab_size"]
        self.eos_ids, self.done = end_of_text_ids(target), 0
        self.answered_by = [settings.model_dump(), str(target), weight_file_stamps(target)]

    def answer_all(self, name: str, conversations: Sequence[Dialogue]) -> pa.Table:
        """Rows of the output, sorted by conversation and turn."""
        rows: list[dict[str, Any]] = []
        going = list(conversations)
        for turn in range(max((len(each.turns) for each in going), default=0)):
            going = [each for each in going if len(each.turns) > turn]
            asked = []
            for each in list(going):
                known = each.interaction_ids[turn]
                exact = self.served.exact(known)
                if exact is not None:
                    rows.append(self._exact_row(each, turn, exact))
                    continue
                try:
                    ids = each.prompt_ids(turn, self.tokenizer)
                except Unrenderable as error:
                    self.counts.unrenderable[str(error)] += len(each.turns) - turn
                    going.remove(each)
                    continue
                if not 0 < len(ids) < self.positions:
                    self.counts.too_long += len(each.turns) - turn  # later turns are longer still
                    going.remove(each)
                    continue
                if max(ids) >= self.vocabulary:
                    raise ModelError(
                        f"row {each.row_id}: the target's tokenizer gives token id {max(ids)}, outside the "
                        f"target's vocabulary of {self.vocabulary}: copy the tokenizer that belongs to the model"
                    )
                sampling = self._sampling(known)
                refused = self.answers.refused(sampling)
                self.counts.refused.update(refused[:1])
                if refused:
                    continue
                ask = answerers.PromptTurn(each, turn, ids, sampling)
                known_reply = self.earlier.reply(each.row_id, turn, ids, sampling)
                if known_reply is None:
                    asked.append(ask)
                    continue
                self.counts.reused += 1
                self.done += 1
                rows.append(self._replied(ask, known_reply))
            for chunk in self.answers.chunks(asked):
                replies = self._answered(chunk)
                rows += [self._replied(turn_asked, reply) for turn_asked, reply in zip(chunk, replies, strict=True)]
        places = {each.row_id: place for place, each in enumerate(conversations)}
        rows.sort(key=lambda row: (places[row["row_id"]], row["turn"]))
        return pa.Table.from_pylist(rows, schema=bare(ANSWER_ROWS))

    def _sampling(self, interaction_id: str | None) -> Sampling:
        """The request's sampling parameters, overridden by the settings."""
        sampling = self.served.sampling(interaction_id)
        if self.settings.temperature is not None:
            sampling = replace(sampling, temperature=self.settings.temperature)
        if self.settings.top_p is not None:
            sampling = replace(sampling, truncation=replace(sampling.truncation, top_p=self.settings.top_p))
        return sampling

    def _answered(self, chunk: list[answerers.PromptTurn]) -> list[CompletionTokens]:
        """A chunk's answers: from the log where a killed run had them all, else asked together, which they depend on."""
        keys = [self._key(turn) for turn in chunk]
        if not all(key in self.log for key in keys):
            self.progress.stop_if_requested()
            replies = self.answers.answer(chunk)
            self.counts.generated_tokens += sum(len(reply.tokens) for reply in replies)
            self.log.add_all({"key": key, **asdict(reply)} for key, reply in zip(keys, replies, strict=True))
        self.done += len(chunk)
        self.progress.report("generate", self.done, self.counts.asked, "turns")
        records = [self.log.find(key) or {} for key in keys]
        return [CompletionTokens(record["tokens"], record["finish_reason"]) for record in records]

    def _key(self, turn: answerers.PromptTurn) -> str:
        """A digest of all that determines an answer."""
        asked = [turn.name, turn.ids, turn.sampling.as_json(), turn.sampling.max_tokens]
        return hashlib.sha256(json.dumps([self.answered_by, asked]).encode()).hexdigest()

    def _text(self, tokens: list[int]) -> str:
        """The answer's text for the history of the next turn, without eos tokens."""
        while tokens and tokens[-1] in self.eos_ids:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _replied(self, asked: answerers.PromptTurn, reply: CompletionTokens) -> dict[str, Any]:
        """The row of a reply, which is part of the next turn's history if it ended."""
        if reply.finish_reason == "stop":
            asked.conversation.answered(asked.turn, self._text(reply.tokens))
        return self._row(asked, reply)

    def _row(self, asked: answerers.PromptTurn, reply: CompletionTokens) -> dict[str, Any]:
        self._within_vocabulary(asked.conversation, reply.tokens)
        if len(reply.tokens) > answerers.room_of(asked, self.settings):
            raise ModelError(
                f"the answer to row {asked.conversation.row_id} has {len(reply.tokens)} tokens, but max_tokens "
                f"was {answerers.room_of(asked, self.settings)}: use an endpoint that respects max_tokens"
            )
        return self._record(
            asked.conversation, asked.turn, "generated", asked.sampling, asked.ids, reply.tokens, reply.finish_reason
        )

    def _exact_row(self, conversation: Dialogue, turn: int, exact: LoggedTokenIds) -> dict[str, Any]:
        self._within_vocabulary(conversation, [*exact.prompt, *exact.answer])
        self.done += 1
        sampling = self.served.sampling(conversation.interaction_ids[turn])
        return self._record(conversation, turn, "served", sampling, exact.prompt, exact.answer, exact.finish_reason)

    def _record(
        self,
        conversation: Dialogue,
        turn: int,
        origin: str,
        sampling: Sampling,
        prompt: list[int],
        answer: list[int],
        finish_reason: str,
    ) -> dict[str, Any]:
        self.counts.temperatures[f"{sampling.temperature:g}"] += 1
        return {
            "row_id": conversation.row_id,
            "turn": turn,
            "session_id": conversation.session_id,
            "prompt_shape": conversation.prompt_shape,
            "workload": conversation.workload,
            "interaction_id": conversation.interaction_ids[turn],
            "origin": origin,
            "prompt_token_ids": prompt,
            "answer_token_ids": answer,
            "finish_reason": finish_reason,
            "temperature": sampling.temperature,
            "sampling": sampling.as_json(),
        }

    def _within_vocabulary(self, conversation: Dialogue, tokens: list[int]) -> None:
        strange = [token for token in tokens if not 0 <= token < self.vocabulary]
        if strange:
            raise ModelError(
                f"row {conversation.row_id}: token id {strange[0]} is outside the target's vocabulary of "
                f"{self.vocabulary}: check served_as and the endpoint's model"
            )


def _why_nothing(dataset: Path, counts: TurnCounts, positions: int) -> str:
    if counts.too_long and counts.too_long == counts.asked:
        return f"{dataset} holds no prompt that fits the target's {positions} positions"
    if counts.unrenderable:
        return f"the chat template refuses the prompts of {dataset}: {counts.unrenderable.most_common(1)[0][0]}"
    if counts.refused:
        return (
            f"every prompt of {dataset} was served with {', '.join(counts.refused)}, which this project's generator does "
            "not do: give answers.endpoint, a server that does"
        )
    return f"{dataset} holds no turn for the target to answer: it needs conversations with a user's message"


def _measures(name: str, table: pa.Table) -> dict[str, Any]:
    lengths = [len(answer) for answer in table["answer_token_ids"].to_pylist()]
    stopped = sum(reason == "stop" for reason in table["finish_reason"].to_pylist())
    served = sum(origin == "served" for origin in table["origin"].to_pylist())
    return {
        f"{name}_rows": len(lengths),
        f"{name}_served_rows": served,
        f"{name}_answer_tokens": sum(lengths),
        f"{name}_stopped_share": stopped / max(1, len(lengths)),
    }


def _write(table: pa.Table, path: Path) -> None:
    with renamed_when_complete(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
