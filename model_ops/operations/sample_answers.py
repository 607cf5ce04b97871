"""Operation `sample_answers`: a model's answers to prompts, as messages that others learn.

DIR/prompts.parquet has the columns key (names the answer, and seeds its random numbers), messages, tools and request (JSON
text) and ts; the output's answers.parquet has SCHEMA. Parameters that the settings leave out are the model's own. A quantized
model computes as it is, or becomes bfloat16 first. Answers are kept in output/.work, so a killed run computes none twice."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from model_ops.adapters import is_adapter
from model_ops.answers import AnswerLog
from model_ops.completions import SampleSettings, sampling_of, server_defaults
from model_ops.decoding import Completion, Runner, decode, load_runner
from model_ops.files import renamed_when_complete
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import end_of_text_ids, load_tokenizer, read_config
from model_ops.operations.base_directory import import_quantized
from model_ops.operations.import_base import download
from model_ops.rendering import ChatTemplate, Row, TurnEncoder, Unrenderable, end_of_turn_ids
from model_ops.tasks import UnusableAnswer, message_of

CHUNK_BATCHES = 4
"""Batches in a chunk; a killed run loses at most one chunk."""
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("message", pa.string()),
        ("failure", pa.string()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("answer_tokens", pa.int64()),
    ]
)


@dataclass(frozen=True)
class SamplePrompt:
    """One answer to give: its key, the prompt's text and tokens, and the tools that the request offered."""

    key: str
    text: str
    ids: list[int]
    tools: list[dict[str, Any]] | None


def run(job: Job, progress: Progress) -> dict[str, float | int]:
    """Writes answers.parquet; returns counts. Raises ModelError if the model cannot answer prompts."""
    with AnswerLog(job.output / ".work" / "answers.jsonl") as log:
        return _run(job, progress, log)


def _run(job: Job, progress: Progress, log: AnswerLog) -> dict[str, float | int]:
    settings = job.settings_as(SampleSettings)
    model = job.inputs["model"] if "model" in job.inputs else download(settings.model or "", None)
    tokenizer = _tokenizer(model)
    rows = pq.read_table(job.input("prompts") / "prompts.parquet").to_pylist()
    prompts, unrenderable = _rendered([row for row in rows if row["key"] not in log], tokenizer, settings)
    log.add_all(unrenderable)
    generated = 0
    if prompts:
        answers = _Answers(model, _runner(model, job.output / ".work" / "base", progress), tokenizer, settings)
        too_long, fitting = answers.apart(prompts)
        log.add_all(too_long)
        size = settings.batch_size * CHUNK_BATCHES
        for start in range(0, len(fitting), size):
            progress.stop_if_requested()
            progress.report("answers", len(log.notes), len(rows), "answers")
            chunk = answers.rows(fitting[start : start + size])
            log.add_all(chunk)
            generated += sum(row["answer_tokens"] for row in chunk)
    progress.report("answers", len(rows), len(rows), "answers")
    with renamed_when_complete(job.output / "answers.parquet") as temporary:
        table = pa.Table.from_pylist([log.find(row["key"]) or {} for row in rows], schema=SCHEMA)
        pq.write_table(table, temporary, compression="zstd")
    return {"answers": len(rows), "generated_tokens": generated}


class _Answers:
    """A loaded model that answers prompts."""

    def __init__(self, model: Path, runner: Runner, tokenizer: PreTrainedTokenizerBase, settings: SampleSettings):
        self.runner, self.tokenizer, self.settings = runner, tokenizer, settings
        self.ends = _ends(model, tokenizer)
        self.sampling = sampling_of(
            {**settings.request, "temperature": settings.temperature, "top_p": settings.top_p}, server_defaults(model)
        )
        self.specials = TurnEncoder(tokenizer).specials
        self.vocabulary = runner.embedding.shape[0]

    def apart(self, prompts: Sequence[SamplePrompt]) -> tuple[list[dict[str, Any]], list[SamplePrompt]]:
        """(rows of the prompts that leave no room for an answer, the others by length)."""
        fitting = [each for each in prompts if 0 < len(each.ids) < self.runner.max_positions]
        strange = max((max(each.ids) for each in fitting), default=0)
        if strange >= self.vocabulary:
            raise ModelError(
                f"the model's tokenizer gives token id {strange}, outside its {self.vocabulary} embeddings: copy "
                "the tokenizer that belongs to the model"
            )
        fits = {each.key for each in fitting}
        too_long = [
            _row(each.key, failure="the prompt is longer than the model's context", prompt_tokens=len(each.ids))
            for each in prompts
            if each.key not in fits
        ]
        return too_long, sorted(fitting, key=lambda each: (len(each.ids), each.key))

    def rows(self, prompts: Sequence[SamplePrompt]) -> list[dict[str, Any]]:
        """Rows of answers.parquet."""
        answers = decode(
            self.runner,
            [each.ids for each in prompts],
            [each.key for each in prompts],
            eos_ids=self.ends,
            temperature=self.sampling.temperature,
            truncation=self.sampling.truncation,
            penalties=self.sampling.penalties,
            seed=self.settings.seed,
            max_new_tokens=min(self.settings.max_new_tokens, self.runner.max_positions),
            batch_size=self.settings.batch_size,
        )
        return [self._row_of(each, answer) for each, answer in zip(prompts, answers, strict=True)]

    def _row_of(self, prompt: SamplePrompt, answer: Completion) -> dict[str, Any]:
        row = _row(
            prompt.key, finish_reason=answer.finish_reason, prompt_tokens=len(prompt.ids), answer_tokens=len(answer.tokens)
        )
        if answer.finish_reason != "stop":
            cut = len(answer.tokens) >= self.settings.max_new_tokens
            return {**row, "failure": "cut by max_tokens" if cut else "cut by the model's context"}
        text = self.tokenizer.decode(answer.tokens[:-1], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        try:
            return {**row, "message": json.dumps(message_of(text, prompt.text, prompt.tools, self.specials))}
        except UnusableAnswer as error:
            return {**row, "failure": str(error)}


def _rendered(
    rows: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, settings: SampleSettings
) -> tuple[list[SamplePrompt], list[dict[str, Any]]]:
    """(prompts as a server renders them, rows of the ones that the chat template refuses)."""
    template, encoder = ChatTemplate.of(tokenizer), TurnEncoder(tokenizer)
    prompts, refused = list[SamplePrompt](), list[dict[str, Any]]()
    for row in rows:
        request = {**(json.loads(row["request"]) if row["request"] else {}), **settings.request}
        tools = json.loads(row["tools"]) if row["tools"] else None
        messages = json.loads(row["messages"])
        try:
            text = template.prompt(Row(row["key"], messages, tools, request=request, ts=row["ts"]), len(messages))
        except Unrenderable as error:
            refused.append(_row(row["key"], failure=error.reason))
            continue
        prompts.append(SamplePrompt(row["key"], text, encoder.prompt(text), tools))
    return prompts, refused


def _row(key: str, **values: Any) -> dict[str, Any]:
    return {"key": key, "message": None, "failure": "", "finish_reason": "", "prompt_tokens": 0, "answer_tokens": 0, **values}


def _tokenizer(model: Path) -> PreTrainedTokenizerBase:
    """Raises ModelError for a directory that can answer no prompt."""
    if is_adapter(model):
        raise ModelError(f"{model} holds an adapter, not a model; merge it into its base first")
    tokenizer = load_tokenizer(model)
    if not tokenizer.chat_template:
        raise ModelError(f"{model} has no chat template, so it cannot be asked; put a chat_template.jinja into the directory")
    return tokenizer


def _ends(model: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens that end an answer: what the model's files name, and what its chat template writes."""
    ends = frozenset(end_of_turn_ids(tokenizer))
    try:
        return ends | end_of_text_ids(model)
    except ModelError:
        if not ends:
            raise
        return ends


def _runner(model: Path, floats: Path, progress: Progress) -> Runner:
    """The model for decoding; a quantization that is not computed here is read as bfloat16, into `floats`."""
    try:
        return load_runner(model)
    except ModelError:
        if read_config(model).get("quantization_config") is None:
            raise
        if not (floats / "config.json").exists():
            import_quantized(model, floats, False, progress)
        return load_runner(floats)
