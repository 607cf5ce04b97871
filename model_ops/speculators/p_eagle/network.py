"""P-EAGLE draft model (AWS 2026, arXiv 2602.01469): EAGLE-3's body with all K drafts in one pass.

    model = PEagle(PEagleConfig.for_target(target.config, 2_000, num_layers=4, mask_token_id=8_191, num_depths=5))
    drafter = load_draft_model(directory).drafter()
    decode(runner, prompts, ..., drafter=drafter, num_speculative_tokens=3)

Draft 0 is EAGLE-3's: the body reads the target's states and the last drawn token. EAGLE-3 would wait for each draft's token
and output; here the entries of drafts 1..K-1 read two learnt values instead: the embedding of a mask token, and `mask_hidden`,
which replaces the target's captured states and passes through `fc`. Entry d of index j has rotary position j + d, attends to
the entries up to j and the mask entries before it, and predicts x[j+2+d]. So a chain costs one pass over K entries, in about
the time of one entry on a GPU. No draft depends on the tokens of earlier drafts, so later drafts are less accurate than
EAGLE-3's.

As with EAGLE-3, only cache entries from the target's own states stay visible. Mask entries of a round come after them, and the
next entries from the target's states overwrite them.

vLLM 0.32 runs it with method eagle3 and "parallel_drafting": true (v1/spec_decode/llm_base_proposer.py). It reads the mask
token's embedding from the drafter's embedding table, so one id loses its own embedding; choose one that texts do not hold
(`model_ops.speculators.states.draft_vocabulary.unused_token`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float32, Int
from pydantic import ValidationError
from torch import Tensor, nn

from model_ops.decoding import Proposal, Runner, independent_drafts
from model_ops.jobs import ModelError
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.eagle3.config import CAPTURED, PEagleConfig, mask_token
from model_ops.speculators.eagle3.drafter import Eagle3Drafter
from model_ops.speculators.eagle3.export import read_midlayer_config
from model_ops.speculators.eagle3.network import Eagle3
from model_ops.speculators.p_eagle.masked_drafts import MaskedBody, unroll_masked


class PEagle(Eagle3, MaskedBody):
    """The draft model. mask_hidden replaces captured states; mask_embedding is the embedding of mask_token_id."""

    config: PEagleConfig

    def __init__(self, config: PEagleConfig):
        super().__init__(config)
        self.mask_hidden = nn.Parameter(torch.zeros(CAPTURED * config.hidden_size))
        self.mask_embedding = nn.Parameter(torch.zeros(config.hidden_size))

    @property
    def longest_chain(self) -> int | None:
        return self.config.num_depths

    @classmethod
    def for_target(
        cls,
        target: Runner,
        target_ids: Int[Tensor, " draft_vocab"],
        num_layers: int,
        num_depths: int,
        mask_token_id: int | None = None,
    ) -> PEagle:
        """A new drafter for `num_depths` tokens, initialised from the target. mask_token_id None: last id of the vocabulary.

        Raises ModelError for a mask token outside the target's vocabulary.
        """
        vocab = target.embedding.shape[0]
        mask = vocab - 1 if mask_token_id is None else mask_token_id
        if mask >= vocab:
            raise ModelError(
                f"mask_token_id is {mask}, outside the target's vocabulary of {vocab}: choose an id within it, or leave it out"
            )
        config = PEagleConfig.for_target(
            target.config, len(target_ids), num_layers=num_layers, mask_token_id=mask, num_depths=num_depths
        )
        return cls(config).to(target.device).begun_from(target, target_ids)

    def warm_start(
        self,
        embedding: Float[Tensor, "vocab hidden"],
        head: Float[Tensor, "vocab hidden"],
        final_norm: Float[Tensor, " hidden"],
    ) -> None:
        """Initialises like EAGLE-3, and the mask with small random numbers of the embedding's scale."""
        super().warm_start(embedding, head, final_norm)
        with torch.no_grad():
            size = float(embedding.std())
            for mask in (self.mask_hidden, self.mask_embedding):
                nn.init.normal_(mask, std=size)

    def embed(self, tokens: Int[Tensor, "*tokens"], positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        """Embeddings as in servers: a token of a text with the mask's id has the mask's embedding."""
        found = self.embed_tokens(tokens)
        return torch.where((tokens == self.config.mask_token_id)[..., None], self.mask_embedding.to(found.dtype), found)

    def masked(self) -> tuple[Float[Tensor, "1 hidden"], Float[Tensor, "1 hidden"]]:
        """Input of the first layer at every mask entry: (hidden, embedding)."""
        return self.fuse(self.mask_hidden[None]), self.mask_embedding[None]

    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        return unroll_masked(self, documents, steps)

    def drafter(self, greedy: bool = False) -> PEagleDrafter:
        return PEagleDrafter(self, greedy)

    def save(
        self,
        directory: Path,
        num_speculative_tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        verifier: str = "target",
        verifier_architectures: list[str] | None = None,
    ) -> None:
        if num_speculative_tokens > (self.config.num_depths or num_speculative_tokens):
            raise ValueError(f"trained for {self.config.num_depths} drafts: set num_speculative_tokens to at most that")
        super().save(directory, num_speculative_tokens, dtype, verifier, verifier_architectures)

    def file_tensors(self) -> dict[str, Tensor]:
        """Tensors for servers: the mask's embedding is a row of the table, mask_hidden is [1, 1, captured * hidden]."""
        tensors = dict(self.state_dict())
        table = tensors["embed_tokens.weight"].clone()
        table[self.config.mask_token_id] = tensors.pop("mask_embedding")
        return {**tensors, "embed_tokens.weight": table, "mask_hidden": tensors["mask_hidden"][None, None]}

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        table, hidden = weights.get("embed_tokens.weight"), weights.get("mask_hidden")
        mask, found = self.config.mask_token_id, dict(weights)
        if table is not None and table.ndim == 2 and mask < len(table):
            found["mask_embedding"] = table[mask]
        return super().stored(found if hidden is None else {**found, "mask_hidden": hidden.flatten()})

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> PEagle:
        shapes = read_midlayer_config(directory, raw)
        try:
            config = PEagleConfig(**shapes.model_dump(), mask_token_id=mask_token(raw), num_depths=raw.get("num_depths"))
        except ValidationError as error:
            problem = error.errors()[0]
            raise ModelError(f"{directory / 'config.json'}: {problem['loc'][0]}: {problem['msg']}") from error
        if config.mask_token_id >= config.vocab_size:
            raise ModelError(
                f"{directory / 'config.json'}: the mask token {config.mask_token_id} is outside the vocabulary of "
                f"{config.vocab_size}"
            )
        return cls(config)


class PEagleDrafter(Eagle3Drafter):
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and otherwise samples each draft
    independently."""

    model: MaskedBody

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes `count` drafts. Raises ModelError if the drafter was trained for fewer."""
        if count > (self.model.longest_chain or count):
            raise ModelError(
                f"this drafter was trained for {self.model.longest_chain} tokens; set num_speculative_tokens to at most that"
            )
        outputs = self.hidden[:, None]
        if count > 1:
            masked = [state.expand(len(outputs), count - 1, -1) for state in self.model.masked()]
            outputs = torch.cat((outputs, self._body(*masked)), dim=1)
        return independent_drafts(self.model.logits(outputs), 0 if self.greedy else temperature, uniforms, self.target_ids)
