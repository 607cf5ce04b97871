"""Trains a small language model as a drafter (DistillSpec, arXiv 2310.08461): the distilled student, or any model with the
target's tokenizer. It reads only tokens. Draft k equals draft 0 at index j + k, so training has a single draft step. Its
directory is a Hugging Face model with the target's digests in config.json, which mark it as a drafter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from model_ops.decoding import ModelDrafter, Runner, new_runner
from model_ops.files import target_digest
from model_ops.jobs import ModelError
from model_ops.losses import Head
from model_ops.models import headers, load_model, load_tokenizer, read_config, save_model
from model_ops.speculators.draft_model import DocumentWindows, DraftModel, SaveOptions

PREFIX = "language_model."
"""Prefix of the language model's tensors in this module's state dict."""


class StandaloneConfig(BaseModel):
    """The vocabulary size, shared with the target; everything else is in the language model's config."""

    model_config = ConfigDict(extra="forbid", strict=True)

    vocab_size: int


class StandaloneModel(DraftModel):
    """The draft model. source: the directory whose tokenizer it is saved with."""

    config: StandaloneConfig

    def __init__(self, language_model: nn.Module, source: Path):
        super().__init__()
        self.config = StandaloneConfig(vocab_size=language_model.config.vocab_size)
        self.language_model, self.source = language_model, source
        self.register_buffer("ids", torch.arange(self.config.vocab_size), persistent=False)

    @property
    def capture(self) -> tuple[int, ...]:
        return ()

    @property
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        return self.ids

    @classmethod
    def from_directory(cls, directory: Path) -> StandaloneModel:
        """The language model of a directory."""
        return cls(load_model(directory, attention="sdpa"), directory)

    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        # padding is on the right, which causal attention does not read
        states = self.language_model.model(input_ids=documents.ids, use_cache=False).last_hidden_state
        first = documents.start[:, None] + torch.arange(documents.window, device=states.device) + 1
        last, width = states.shape[1] - 1, states.shape[2]
        return [states.gather(1, (first + step).clamp(max=last)[:, :, None].expand(-1, -1, width)) for step in range(steps)]

    def scored(
        self, hidden: Float[Tensor, "*rows hidden"], step: int
    ) -> tuple[Float[Tensor, "*rows hidden"], Float[Tensor, "draft_vocab hidden"]]:
        head = Head.required(self.language_model)
        return hidden.float() * head.scale, head.weight

    def drafter(self, greedy: bool = False) -> ModelDrafter:
        return ModelDrafter(new_runner(self.language_model), self.config.vocab_size, greedy)

    @classmethod
    def new(cls, settings: Any, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> StandaloneModel:
        return cls.from_directory(Path(settings.draft_model)).to(target.device)

    def write(self, directory: Path, options: SaveOptions) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_model(self.language_model, load_tokenizer(self.source), directory, options.dtype)

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> StandaloneModel:
        return cls.from_directory(directory)

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        named = {f"{PREFIX}{name}": tensor for name, tensor in weights.items()}
        if self.language_model.config.tie_word_embeddings:
            named[f"{PREFIX}lm_head.weight"] = named.get(f"{PREFIX}model.embed_tokens.weight")
        return named


def check_draft_model(directory: Path, target: Path) -> None:
    """Checks that a language model can draft for a target in a server. Raises ModelError with the reason if not."""
    config = read_config(directory)
    if config.get("quantization_config") is not None:
        raise ModelError(
            f"draft_model: {directory} is quantized and cannot be trained: give the model that it was quantized from"
        )
    if config.get("final_logit_softcapping"):
        raise ModelError(
            f"draft_model: {directory} caps its logits, which the training of a drafter does not: choose another model"
        )
    if target_digest(directory) == target_digest(target):
        raise ModelError(
            f"draft_model: {directory} holds the target's own weights: drafting would cost as much as answering; "
            "give a smaller model"
        )
    check_shared_vocabulary(f"draft_model: {directory}", directory, target)
    own, targets = _parameters(directory), _parameters(target)
    if own >= targets:
        raise ModelError(
            f"draft_model: {directory} has {own:,} weights and the target {targets:,}: drafting would cost as "
            "much as answering; give a smaller model (for the student: fewer layers)"
        )


def check_shared_vocabulary(name: str, directory: Path, target: Path) -> None:
    """Checks that a language model's tokens are the target's, in name and number. Raises ModelError about `name` if not."""
    if load_tokenizer(directory).get_vocab() != load_tokenizer(target).get_vocab():
        raise ModelError(
            f"{name} has another tokenizer than the target: its drafts would be other words; give a model of the "
            "target's own family"
        )
    own, targets = (read_config(each).get("vocab_size") for each in (directory, target))
    if own != targets:
        raise ModelError(
            f"{name} has vocab_size {own} and the target {targets}, and servers refuse the two together: resize "
            "the embeddings of one"
        )


def _parameters(directory: Path) -> int:
    """Number of weights in a directory's files, without quantization scales and a second copy of a tied head."""
    tied = read_config(directory).get("tie_word_embeddings", False)
    return sum(
        math.prod(shape)
        for name, shape in headers(directory).items()
        if not name.endswith("_scale") and not (tied and name == "lm_head.weight")
    )
