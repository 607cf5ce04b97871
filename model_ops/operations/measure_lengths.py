"""Operation `measure_lengths`: how many rows of a dataset each limit on length costs, before anything is trained on them.

Writes limits.parquet (LIMIT_ROWS), lengths.json with a sentence for each later stage that could not work at all, and
rendered.html and rendered.md with some rows as the input `model` reads them."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from model_ops.completions import choose_conversations, read_conversations
from model_ops.decoding import read_prompts
from model_ops.documents import Documents, TokenizeCounts, tokenize
from model_ops.files import bare, vocabulary_digest, write_json, write_text
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer, read_config
from model_ops.operations.limit_rows import LIMIT_ROWS
from model_ops.operations.measure_lengths_settings import DrafterLimit, EvaluationLimit, LengthSettings, TrainingLimit
from model_ops.rendering import Picture, RenderingSettings, Split, Unrenderable, iterate_rows

ROWS = 20_000
"""Most rows of a split that are compared: enough to know a share to less than a percent."""
ROWS_SHOWN = 8
"""Rows in the picture of rendered rows, and as many that are left out."""
TOKENIZERS = "tokenizers.json"
"""In a dataset: vocabulary digest of the tokenizer of each seed with token ids that names one."""
WHOLE = 2**31 - 1
"""A length that no row reaches."""


@dataclass(frozen=True)
class Cost:
    """Rows that one limit costs a stage; the fields are the columns of LIMIT_ROWS."""

    stage: str
    dataset_split: str
    limit: str
    tokens: int | None
    rows: int
    cut: int
    lost: int


@dataclass
class Findings:
    """Results of the length measurement."""

    costs: list[Cost] = field(default_factory=list)
    """One cost for each limit and split."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each stage that could not work."""
    notes: list[str] = field(default_factory=list)
    """Notes that stop nothing."""


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Writes the report. Raises ModelError if the chat template refuses a row or the dataset cannot be read."""
    settings = job.settings_as(LengthSettings)
    model, dataset = job.input("model"), job.input("dataset")
    refuse_other_token_ids(model, dataset)
    tokenizer, positions = load_tokenizer(model), positions_of(model)
    findings, lengths = Findings(), {}
    splits = [name for name in get_args(Split) if (dataset / f"{name}.parquet").exists()]
    for done, split in enumerate(splits):
        progress.stop_if_requested()
        progress.report("lengths", done, len(splits), "splits")
        documents, counts = _documents(dataset, split, tokenizer)
        findings.notes += [
            f"{rows:,} of {counts.rows:,} {split} rows are left out: {reason}" for reason, rows in counts.unrenderable.items()
        ]
        lengths[f"{split}_rows"] = _described(documents.lengths)
        if split == "test":
            prompts = np.array([len(prompt.ids) for prompt in read_prompts(dataset, split, tokenizer)], dtype=np.int64)
            compare_evaluation(documents, prompts, settings.evaluation, positions, findings)
            lengths["test_prompts"] = _described(prompts)
            continue
        for name, limit in settings.training.items():
            compare_training(name, split, documents, limit, positions, findings)
        if settings.drafter is not None and split == "train":
            prompts = _first_prompts(dataset, tokenizer, settings.drafter)
            compare_drafter(prompts, settings.drafter, positions, findings)
            lengths["drafter_prompts"] = _described(prompts)
    progress.report("lengths", len(splits), len(splits), "splits")
    for sentence in findings.notes:
        progress.event("note", message=f"length_report: {sentence}")
    job.output.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([asdict(cost) for cost in findings.costs], schema=bare(LIMIT_ROWS))
    pq.write_table(table, job.output / "limits.parquet")
    report = {"positions": positions, **lengths, "problems": findings.problems, "notes": findings.notes}
    write_json(job.output / "lengths.json", report)
    picture = Picture.of(dataset, "train", tokenizer, ROWS_SHOWN)
    write_text(job.output / "rendered.html", picture.page())
    write_text(job.output / "rendered.md", picture.markdown())
    losing = {
        f"{cost.limit} ({cost.dataset_split})": {"cut": cost.cut, "lost": cost.lost, "of": cost.rows}
        for cost in findings.costs
        if cost.cut or cost.lost
    }
    return json.loads(json.dumps({**report, "limits": losing}))


def refuse_other_token_ids(model: Path, dataset: Path) -> None:
    """Raises ModelError if the dataset has token ids of another vocabulary than the model's, as far as its seeds say."""
    stated = dataset / TOKENIZERS
    of_seeds = json.loads(stated.read_text()) if stated.exists() else {}
    own = vocabulary_digest(model) if of_seeds else ""
    for source, digest in of_seeds.items():
        if digest != own:
            raise ModelError(
                f"seeds {source}: its token ids are of another tokenizer than the base model's; tokenize its "
                f"texts with the base model's tokenizer, or leave {source} out"
            )


def compare_training(
    name: str, split: Split, documents: Documents, limit: TrainingLimit, positions: int | None, findings: Findings
) -> None:
    """Adds the costs of a stage's max_length and of the positions."""
    lengths, first = documents.lengths, _first_targets(documents)
    longer = lengths > limit.max_length
    drops = limit.overflow == "drop"
    lost = longer if drops else first >= limit.max_length if limit.overflow == "truncate" else np.zeros(len(lengths), bool)
    findings.costs.append(
        Cost(
            name,
            split,
            f"{name}.max_length",
            limit.max_length,
            len(lengths),
            0 if drops else int((longer & ~lost).sum()),
            int(lost.sum()),
        )
    )
    if split == "train" and not len(lengths):
        findings.problems.append(f"{name}: no training row has an answer to learn from; look at the dataset's rows and weights")
    elif split == "train" and lost.all():
        findings.problems.append(
            f"{name}: none of {len(lengths):,} training rows has a token to learn within {name}.max_length, "
            f"{limit.max_length:,}: the earliest answer begins after {int(first.min()):,} tokens; raise {name}.max_length"
        )
    if positions is None:
        return
    taken = lengths[~lost] if drops else np.minimum(lengths, limit.max_length)
    beyond = int((taken > positions).sum())
    findings.costs.append(Cost(name, split, "positions", positions, len(lengths), 0, beyond))
    if beyond and not any(sentence.startswith(f"{name}: ") for sentence in findings.problems):  # one sentence for a stage
        findings.problems.append(
            f"{name}: {beyond:,} of {len(lengths):,} {split} rows have more tokens than the model's {positions:,} positions, "
            f"and {name}.max_length is {limit.max_length:,}; set {name}.max_length to at most {positions:,}"
        )


def compare_drafter(prompts: np.ndarray, limit: DrafterLimit, positions: int | None, findings: Findings) -> None:
    """Adds what positions and max_length leave of the answers that the drafter learns from. prompts: tokens before each
    conversation's first answer."""
    for name, most, spared in (("positions", positions, 1), ("speculator.max_length", limit.max_length, 2)):
        if most is None:
            continue
        lost = prompts > most - spared
        cut = ~lost & (prompts + limit.max_new_tokens > most)
        findings.costs.append(Cost("speculator", "train", name, most, len(prompts), int(cut.sum()), int(lost.sum())))
        if len(prompts) and lost.all():
            remedy = (
                "raise speculator.max_length"
                if name != "positions"
                else "take a base model with more positions, or set speculator.enabled to false"
            )
            findings.problems.append(
                f"speculator: none of {len(prompts):,} training prompts leaves room for an answer within {_named(name, most)}: "
                f"the shortest has {int(prompts.min()):,} tokens; {remedy}"
            )
    if not len(prompts):
        findings.problems.append("speculator: no training row has a turn to answer; give traffic with a user's message")


def compare_evaluation(
    documents: Documents, prompts: np.ndarray, limit: EvaluationLimit, positions: int | None, findings: Findings
) -> None:
    """Adds the costs of the evaluation's limits on test rows and prompts."""
    first = _first_targets(documents)
    lost, longer = first >= limit.max_length, documents.lengths > limit.max_length
    findings.costs.append(
        Cost(
            "evaluation",
            "test",
            "evaluation.max_length",
            limit.max_length,
            len(first),
            int((longer & ~lost).sum()),
            int(lost.sum()),
        )
    )
    if not len(first):
        findings.problems.append(
            "evaluation: no test row has an answer to measure; raise datasets.sft.test_share or add sessions"
        )
    elif lost.all():
        findings.problems.append(
            f"evaluation: none of {len(first):,} test rows has an answer within evaluation.max_length, "
            f"{limit.max_length:,}; raise it"
        )
    room = min(limit.max_length, WHOLE if positions is None else positions - limit.max_new_tokens)
    lost = prompts > room
    findings.costs.append(
        Cost("evaluation", "test", "positions - evaluation.max_new_tokens", room, len(prompts), 0, int(lost.sum()))
    )
    if not lost.all() or not len(first):
        return
    sentence, remedy = "evaluation: acceptance cannot be measured: ", "set release.gates.acceptance_length to null"
    if len(prompts):
        held = (
            "" if positions is None else (f" (the model has {positions:,} positions, an answer takes {limit.max_new_tokens:,})")
        )
        sentence += (
            f"none of {len(prompts):,} test prompts has at most {room:,} tokens, and the shortest has "
            f"{int(prompts.min()):,}{held}"
        )
        remedy = f"lower evaluation.max_new_tokens, take a base model with more positions, or {remedy}"
    else:
        sentence += "no test row has a prompt; rows of plain text and of token ids have none"
        remedy = f"add a source of conversations, or {remedy}"
    if limit.acceptance_is_gated:
        findings.problems.append(f"{sentence}; {remedy}")
    else:
        findings.notes.append(sentence)


def positions_of(model: Path) -> int | None:
    """Most tokens of prompt and answer together, by config.json; None if it names no number."""
    config = read_config(model)
    positions = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    return positions if type(positions) is int else None


def _named(name: str, tokens: int) -> str:
    return f"the model's {tokens:,} positions" if name == "positions" else f"{name}, {tokens:,}"


def _documents(dataset: Path, split: Split, tokenizer: PreTrainedTokenizerBase) -> tuple[Documents, TokenizeCounts]:
    """Documents of evenly spaced rows, uncut; rows without a token to predict are left out."""
    step = max(1, math.ceil(pq.read_metadata(dataset / f"{split}.parquet").num_rows / ROWS))
    rows = islice(iterate_rows(dataset, split), 0, None, step)
    return tokenize(rows, tokenizer, WHOLE, rendering=RenderingSettings.read(dataset))


def _first_targets(documents: Documents) -> np.ndarray:
    """Index of each document's first token with a loss. The first token of a document never has one."""
    return np.array([1 + int(np.argmax(document.targets[1:])) for document in documents], dtype=np.int64)


def _first_prompts(dataset: Path, tokenizer: PreTrainedTokenizerBase, limit: DrafterLimit) -> np.ndarray:
    """Tokens before the first answer of the conversations that `generate` would choose."""
    chosen = choose_conversations(read_conversations(dataset, "train", tokenizer), limit.prompts, limit.seed)
    lengths = []
    for each in chosen[:ROWS]:
        with suppress(Unrenderable):  # such a row has no prompt; it is counted with the documents
            lengths.append(len(each.prompt_ids(0, tokenizer)))
    return np.array(lengths, dtype=np.int64)


def _described(lengths: Sequence[int] | np.ndarray) -> dict[str, int]:
    """Number of rows, and their tokens: shortest, median, 95th percentile, longest."""
    if not len(lengths):
        return {"rows": 0}
    low, middle, high, most = np.percentile(lengths, [0, 50, 95, 100], method="lower")
    return {"rows": len(lengths), "shortest": int(low), "median": int(middle), "p95": int(high), "longest": int(most)}
