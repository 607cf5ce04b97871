"""Scores answers with a reward model.

    grader = RewardModel.load(directory)                   # ModelError if its gate does not let it grade
    scores = grader.scores(rows)                           # rows: model_ops.rendering.Row; the last message is the answer
    scores.values                                          # [0.81, None, -0.3]; None: see scores.left_out
    grader.record.standard(0.81), grader.record.probability(0.81, -0.3)

Rows are rendered with the reward model's own chat template, so a policy with another tokenizer can be graded. Answers to one
prompt share its computation. An answer without a score is named and never counts as 0."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from model_ops.documents import MICRO_BATCH_TOKENS, Branch, Document, context_of, to_batches
from model_ops.families import PACKED
from model_ops.jobs import ModelError
from model_ops.losses import Head, last_hidden, local_head
from model_ops.machine import Concrete, concrete_precision, products_dtype, products_in
from model_ops.models import load_model, load_tokenizer
from model_ops.rendering import RenderingSettings, Row, end_of_turn_ids, rendered_rows
from model_ops.rewards.reward_record import RewardRecord
from model_ops.tensors import Batch


def with_score_head(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """The decoder of a causal language model under a new float32 head; the language-model head is dropped. The head's weights
    are normal with standard deviation 1 / sqrt(width + 1) (Stiennon et al., arXiv 2009.01325); the same seed gives the same
    head on every device. Raises ModelError for a family without a sequence classifier in transformers."""
    config = model.config
    config.id2label, config.label2id, config.problem_type = {0: "reward"}, {"reward": 0}, "regression"
    config.pad_token_id = padding_token(tokenizer, config.vocab_size)
    kind, decoder = config.model_type, model.base_model
    try:
        with torch.device("meta"):
            classifier = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{kind}: transformers has no sequence classifier for it, so it cannot be a reward model") from error
    held, score = getattr(classifier, classifier.base_model_prefix, None), getattr(classifier, "score", None)
    if held is None or type(held) is not type(decoder) or not isinstance(score, nn.Linear):
        raise ModelError(
            f"{kind}: its sequence classifier is not its decoder under a linear score, so it cannot be a reward model"
        )
    setattr(classifier, classifier.base_model_prefix, decoder)
    width = score.in_features
    drawn = torch.randn(1, width, generator=torch.Generator().manual_seed(seed)) / math.sqrt(width + 1)
    score.weight = nn.Parameter(drawn.to(decoder.get_input_embeddings().weight.device))
    classifier.generation_config = None  # it generates nothing; those who save a model look for one
    return classifier.train(model.training)


def segment_ends(batch: Batch) -> Int[Tensor, " segments"]:
    """The place of the last token of each segment: a document, or a branch of one."""
    return (torch.tensor(batch.document_lengths).cumsum(0) - 1).to(batch.input_ids.device, non_blocking=True)


def answer_scores(model: PreTrainedModel, batch: Batch, places: Int[Tensor, " answers"]) -> Float[Tensor, " answers"]:
    """Float32 scores of the answers whose last tokens are at `places` of the packed row."""
    hidden = last_hidden(model, batch)[places]
    head, _ = local_head(Head(model.score.weight))
    if head is None:
        raise ModelError("the score head is no linear layer, so it gives no scores")
    with torch.autocast(hidden.device.type, enabled=False):
        return hidden.float() @ head.weight.float()[0]


def scorers_tokenizer(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> PreTrainedTokenizerBase:
    """A copy for the reward model's directory: it pads with `padding_token`, and a conversation that ends with an answer is
    rendered up to the end of its turn, without the white space that many templates write after it. So whoever sends messages
    gets the score of the token that was trained."""
    copied = copy.deepcopy(tokenizer)
    copied.pad_token = tokenizer.convert_ids_to_tokens(padding_token(tokenizer, vocab_size))
    template = tokenizer.chat_template
    copied.chat_template = (
        {name: _up_to_end_of_turn(text) for name, text in template.items()}
        if isinstance(template, dict)
        else template and _up_to_end_of_turn(template)
    )
    return copied


def _up_to_end_of_turn(template: str) -> str:
    whole = f"{{% set conversation %}}{template.removesuffix(chr(10))}{{% endset %}}"
    return whole + "{{ conversation if add_generation_prompt else conversation.rstrip() }}"


def padding_token(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int:
    """Id of a token that ends no answer: the tokenizer's own padding where that is one, else another special token, else the
    last of the vocabulary."""
    ends = {tokenizer.eos_token_id, *end_of_turn_ids(tokenizer)}
    wanted = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, *sorted(tokenizer.added_tokens_decoder)]
    return next(token for token in (*wanted, vocab_size - 1, vocab_size - 2) if token is not None and token not in ends)


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
        precision = concrete_precision("auto", device)
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
