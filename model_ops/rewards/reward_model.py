"""Scores answers with a reward model.

    grader = RewardModel.load(directory)                   # ModelError if its gate does not let it grade
    scores = grader.scores(rows)                           # rows: model_ops.rendering.Row; the last message is the answer
    scores.values                                          # [0.81, None, -0.3]; None: see scores.left_out
    grader.record.standard(0.81), grader.record.probability(0.81, -0.3)

Rows are rendered with the reward model's own chat template, so a policy with another tokenizer can be graded. Answers to one
prompt share its computation. An answer without a score is named and never counts as 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Int
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from model_ops.documents import MICRO_BATCH_TOKENS, Branch, Document, context_of, to_batches
from model_ops.families import PACKED
from model_ops.jobs import ModelError
from model_ops.machine import Concrete, decided, products_dtype, products_in
from model_ops.models import load_model, load_tokenizer
from model_ops.rendering import RenderingSettings, Row, rendered_rows
from model_ops.rewards.reward_record import RewardRecord
from model_ops.rewards.score_head import answer_scores, segment_ends
from model_ops.tensors import Batch

Ids = Int[np.ndarray, "_"]


class AnswerTokens(NamedTuple):
    """The tokens of a prompt, and of an answer with its end of turn."""

    prompt: Ids
    answer: Ids


@dataclass(frozen=True)
class Scores:
    """Scores of answers."""

    values: list[float | None]
    """In the order of the rows; None for an answer that is left out."""
    left_out: dict[str, str]
    """Id of a row without a score -> why."""


class RewardModel:
    """A loaded reward model."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, record: RewardRecord | None, precision: Concrete
    ):
        self.model, self.tokenizer, self._record, self.precision = model.eval(), tokenizer, record, precision
        self.context = context_of(model.config.to_dict())
        self.shares_prompts = model.config.model_type in PACKED

    @classmethod
    def load(cls, directory: Path, device: torch.device | str = "cpu", to_grade: bool = True) -> Self:
        """to_grade: raise ModelError if the gate does not hold; without, reward.json may be missing (it is being measured)."""
        record = RewardRecord.read(directory) if to_grade else None
        if record is not None:
            record.refuse_to_grade(directory)
        device = torch.device(device)
        precision = decided("auto", device)
        model = load_model(directory, dtype=products_dtype(precision, device), device=device, classifier=True)
        return cls(model, load_tokenizer(directory), record, precision)

    @property
    def record(self) -> RewardRecord:
        if self._record is None:
            raise ModelError("this reward model was loaded without its reward.json, so its scores are not calibrated")
        return self._record

    def scores(self, rows: Sequence[Row], rendering: RenderingSettings | None = None) -> Scores:
        """Scores of the answers that are the rows' last messages."""
        asked = [replace(row, messages=_as_context(row.messages[:-1]) + row.messages[-1:]) for row in rows]
        tokens: list[AnswerTokens | str] = []
        for row in rendered_rows(asked, self.tokenizer, rendering or RenderingSettings()):
            if not row.contexts:
                tokens.append(str(row.refusal or "its last message is no answer"))
                continue
            ids, targets = row.contexts[-1]
            begin = int(np.argmax(targets))
            tokens.append(AnswerTokens(ids[:begin], ids[begin:]))
        return self._scored([row.row_id for row in rows], tokens)

    @torch.no_grad()
    def _scored(self, row_ids: Sequence[str], answers: Sequence[AnswerTokens | str]) -> Scores:
        values: list[float | None] = [None] * len(answers)
        left_out: dict[str, str] = {}
        groups: dict[bytes, list[int]] = {}
        for place, (row_id, answer) in enumerate(zip(row_ids, answers, strict=True)):
            reason = answer if isinstance(answer, str) else self._why_not(answer)
            if reason:
                left_out[row_id] = reason
            elif not isinstance(answer, str):
                groups.setdefault(answer.prompt.tobytes() if self.shares_prompts else str(place).encode(), []).append(place)
        members = list(groups.values())
        documents = [_document(str(number), [answers[place] for place in each]) for number, each in enumerate(members)]
        device = self.model.get_input_embeddings().weight.device
        batches: list[Batch] = to_batches(documents, MICRO_BATCH_TOKENS)
        for batch in batches:
            there = batch.to(device)
            with products_in(self.precision, device):
                scores = answer_scores(self.model, there, segment_ends(there)).tolist()
            for place, score in zip((place for row_id in batch.row_ids for place in members[int(row_id)]), scores, strict=True):
                values[place] = score
        return Scores(values, left_out)

    def _why_not(self, answer: AnswerTokens) -> str:
        """Why an answer gets no score; "" if it gets one."""
        length = len(answer.prompt) + len(answer.answer)
        if not len(answer.answer) or not len(answer.prompt):
            return "it has no tokens"
        if self.context is not None and length > self.context:
            return f"prompt and answer are {length} tokens, and the reward model has {self.context} positions"
        return ""


def _as_context(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**said, "weight": 0} if said.get("role") == "assistant" else said for said in messages]


def _document(row_id: str, answers: Sequence[AnswerTokens]) -> Document:
    """The first answer with its prompt as the trunk, the others as branches of the prompt: each segment ends with an answer."""
    prompt = answers[0].prompt
    ids = np.concatenate([prompt, *(each.answer for each in answers)]).astype(np.int32)
    branches = tuple(Branch(len(prompt), len(each.answer)) for each in answers[1:])
    return Document(row_id, ids, np.zeros(len(ids), dtype=bool), branches=branches)
