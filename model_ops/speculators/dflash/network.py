"""DFlash draft model (Chen et al. 2026, arXiv 2602.06036): a whole block of drafts in one pass. Tensor names as in z-lab's
files.

A block is the anchor (the token that the target has just drawn) and a mask token for each draft. Its tokens attend to each
other without a causal mask, and to the text before the anchor, whose keys and values every layer computes from the target's
states:

    context = hidden_norm(fc(states of several of the target's layers))                  # at every token of the text
    x = embedding(anchor, mask, mask, ...)
    in every layer: k, v = k_proj, v_proj of context, then of input_layernorm(x); q = q_proj(input_layernorm(x))
                    x = x + o_proj(attention(q_norm(q), k_norm(k), v)); x = x + mlp(post_attention_layernorm(x))
    logits of the draft at a mask token = head(norm(x))

Embedding and head are the target's (`attach`). At index j the context ends at j, the anchor is x[j+1], and the mask at position
j+1+k drafts x[j+1+k], which is step k - 1 of the interface. Training drafts at several positions of an answer at once: the
tokens of a block enter attention as further heads of one query, so memory is linear in the length of the document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int
from pydantic import ValidationError
from torch import Tensor, nn

from model_ops.decoding import Proposal, RotaryTable, Runner, independent_drafts
from model_ops.families import drafter_shape
from model_ops.jobs import ModelError
from model_ops.speculators.backbone.draft_attention import WindowLayout, draft_attention
from model_ops.speculators.backbone.draft_layers import DraftLayer, Norm, new_cache
from model_ops.speculators.decoder_config import DFlashConfig, captured_boundaries, rope_of
from model_ops.speculators.draft_model import (
    DocumentWindows,
    DraftModel,
    SaveOptions,
    decoder_fields,
    in_dtype,
    rotary_embedding,
    speculators_fields,
    write_both_layouts,
)


def save_dflash(config: DFlashConfig, tensors: dict[str, Tensor], directory: Path, options: SaveOptions) -> None:
    """Writes both layouts. Raises ValueError for more drafts than a block has."""
    drafts = options.num_speculative_tokens
    if not 1 <= drafts < config.block_size:
        raise ValueError(f"a block of {config.block_size} holds {config.block_size - 1} drafts, not {drafts}")
    weights = in_dtype(tensors, options.dtype)
    trained_with = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": _outputs(config),
    }
    in_speculators_layout = weights, speculators_config(config, options)
    write_both_layouts(directory, weights, dflash_config(config, options.dtype), in_speculators_layout, trained_with)


def dflash_config(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of z-lab's layout."""
    return {
        "architectures": ["DFlashDraftModel"],
        **_qwen3_fields(config, dtype),
        "block_size": config.block_size,
        "dflash_config": {"mask_token_id": config.mask_token_id, "target_layer_ids": _outputs(config)},
        "num_target_layers": config.target_layers,
    }


def speculators_config(config: DFlashConfig, options: SaveOptions) -> dict[str, Any]:
    """config.json of the speculators layout, every flag explicit."""
    layers = {"architectures": ["Qwen3ForCausalLM"], **_qwen3_fields(config, options.dtype)}
    return {
        **speculators_fields("dflash", options, layers),
        "architectures": ["DFlashSpeculator"],
        "aux_hidden_state_layer_ids": list(config.layer_ids),
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
    }


def read_dflash_config(directory: Path, raw: dict[str, Any]) -> DFlashConfig:
    """The module's config from z-lab's config.json. Raises ModelError for missing fields and for unsupported values."""
    path, own = directory / "config.json", raw.get("dflash_config")
    own = own if isinstance(own, dict) else {}
    outputs = own.get("target_layer_ids")
    if not isinstance(outputs, list) or not all(type(output) is int for output in outputs):
        raise ModelError(f"{path}: dflash_config.target_layer_ids is {outputs!r}; list the target's layers that it reads")
    unknown = [
        name
        for name in (
            "causal",
            "use_swa",
            "attention_sink_bias",
            "attention_value_scale",
            "projector_type",
            "conv_kernel_size",
            "selector_rank",
            "sample_from_anchor",
        )
        if own.get(name)
    ]
    kinds = raw.get("layer_types") or []
    if unknown or raw.get("attention_bias") or any(kind != "full_attention" for kind in kinds):
        what = f"dflash_config.{unknown[0]}" if unknown else "attention_bias or a layer without full attention"
        raise ModelError(f"{path} has {what}, which is not supported: give a drafter without it")
    heads, hidden = raw.get("num_attention_heads"), raw.get("hidden_size")
    names = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "eos_token_id",
        "bos_token_id",
        "pad_token_id",
    )
    try:
        return DFlashConfig(
            **{name: raw.get(name) for name in names},
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or (hidden // heads if isinstance(hidden, int) and heads else None),
            num_layers=raw.get("num_hidden_layers"),
            rope_parameters=rope_of(raw, 1_000_000.0),
            layer_ids=[output + 1 for output in outputs],
            target_layers=raw.get("num_target_layers") or max(outputs, default=0) + 1,
            block_size=own.get("block_size", raw.get("block_size")),
            mask_token_id=own.get("mask_token_id", raw.get("mask_token_id")),
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise ModelError(f"{path}: {problem['loc'][0]}: {problem['msg']}") from error


def _outputs(config: DFlashConfig) -> list[int]:
    """The target's layers whose outputs are the boundaries that are read."""
    return [boundary - 1 for boundary in config.layer_ids]


def _qwen3_fields(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    return {
        **decoder_fields(config, dtype),
        "layer_types": ["full_attention"] * config.num_layers,
        "max_window_layers": config.num_layers,
        "model_type": "qwen3",
        "sliding_window": None,
        "use_sliding_window": False,
    }


def default_mask_token(target: Runner) -> int:
    """The target's padding token if it is not an eos token; otherwise the last token with an embedding, which is unused if the
    vocabulary is padded or has reserved tokens, and rare otherwise."""
    ends = target.config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    padding = target.config.pad_token_id
    known = (target.embedding != 0).any(dim=1)
    if isinstance(padding, int) and padding not in ends and 0 <= padding < len(known) and known[padding]:
        return padding
    return int(known.nonzero()[-1])


@dataclass(frozen=True)
class SharedWeights:
    """Weights that the drafter shares with its target; its files do not hold them."""

    embedding: Float[Tensor, "vocab hidden"]
    head: Float[Tensor, "vocab hidden"]


class DFlash(DraftModel):
    """The draft model. `shared` is None until `attach` has been called with its target."""

    config: DFlashConfig
    trained_for = ("layer_ids", "mask_token_id")

    def __init__(self, config: DFlashConfig):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = Norm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config, first=False, normed=True) for _ in range(config.num_layers))
        self.norm = Norm(hidden, config.rms_norm_eps)
        self.rotary = rotary_embedding(config)
        self.shared: SharedWeights | None = None

    @property
    def capture(self) -> tuple[int, ...]:
        return tuple(self.config.layer_ids)

    @property
    def longest_chain(self) -> int:
        return self.config.block_size - 1

    @property
    def target_ids(self) -> Int[Tensor, " vocab"]:
        return torch.arange(self.config.vocab_size, device=self.fc.weight.device)

    @classmethod
    def new(cls, settings: Any, target: Runner, target_ids: Int[Tensor, " vocab"]) -> DFlash:
        """As `DraftModel.new`. Raises ModelError for ids that are not the target's whole vocabulary, a mask token outside it,
        or too few layers."""
        config, vocab = target.config, target.embedding.shape[0]
        if len(target_ids) != vocab:
            raise ModelError(f"DFlash uses the target's head and needs its whole vocabulary of {vocab} tokens")
        mask = default_mask_token(target) if settings.mask_token_id is None else settings.mask_token_id
        if mask >= vocab:
            raise ModelError(
                f"mask_token_id is {mask}, outside the target's vocabulary of {vocab}: choose one of its tokens, "
                "if possible one that no text holds"
            )
        model = cls(
            DFlashConfig(
                **drafter_shape(config),
                vocab_size=vocab,
                num_layers=settings.num_layers,
                target_layers=config.num_hidden_layers,
                layer_ids=captured_boundaries(config.num_hidden_layers, settings.captured_layers),
                block_size=settings.block_size,
                mask_token_id=mask,
            )
        ).to(target.device)
        model.warm_start(target.final_norm.float())
        return model.attach(target)

    def warm_start(self, final_norm: Float[Tensor, " hidden"]) -> None:
        """Initialises the last norm from the target, `fc` to select the deepest state, and layers near the identity."""
        with torch.no_grad():
            self.norm.weight.copy_(final_norm)
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
                if name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight")):
                    parameter *= 0.1
            nn.init.normal_(self.fc.weight, std=0.02)
            self.fc.weight[:, -self.config.hidden_size :] += torch.eye(self.config.hidden_size, device=self.fc.weight.device)

    def attach(self, target: Runner) -> Self:
        if tuple(target.embedding.shape) != (self.config.vocab_size, self.config.hidden_size):
            raise ModelError(
                f"this drafter needs an embedding of {self.config.vocab_size} tokens and width "
                f"{self.config.hidden_size}, the target's is {list(target.embedding.shape)}: give its own target"
            )
        self.shared = SharedWeights(target.embedding.detach(), target.head.weight.detach())
        return self

    def of_target(self) -> SharedWeights:
        """The weights shared with the target. Raises ModelError if no target is attached."""
        if self.shared is None:
            raise ModelError("a DFlash drafter has neither embedding nor head of its own: attach(target) first")
        return self.shared

    def context(self, captured: Float[Tensor, "*tokens captured_hidden"]) -> Float[Tensor, "*tokens hidden"]:
        """The input of every layer's keys and values, from the target's states."""
        return self.hidden_norm(self.fc(captured.to(self.fc.weight.dtype)))

    def embed(self, anchors: Int[Tensor, " blocks"], drafts: int) -> Float[Tensor, "blocks {drafts}+1 hidden"]:
        """Input of the first layer: for each block the embeddings of its anchor and mask tokens."""
        tokens = F.pad(anchors[:, None], (0, drafts), value=self.config.mask_token_id)
        return F.embedding(tokens, self.of_target().embedding).to(self.fc.weight.dtype)

    def logits(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens vocab"]:
        """Logits over the target's vocabulary, float32."""
        return F.linear(self.norm(hidden), self.of_target().head.to(self.norm.weight.dtype)).float()

    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        """Outputs of the last layer (before the final norm) at every mask token of the blocks at the documents' anchors; zeros
        at other entries."""
        ids, (rows, tokens) = documents.ids, documents.ids.shape
        anchors = _anchors(documents)
        document, entry = anchors.nonzero(as_tuple=True)
        index = documents.start[document] + entry
        layout = WindowLayout.at(index, anchors.sum(1).tolist())
        of_key, place = layout.keys()
        context = self.context(documents.captured.flatten(0, 1)[of_key * tokens + place])
        places = torch.arange(tokens + steps, device=ids.device)[None]
        cos, sin = (table[0].to(context.dtype)[:, None] for table in self.rotary(context.float(), places))
        stands = index[:, None] + 1 + torch.arange(1 + steps, device=ids.device)
        hidden = self.embed(ids[document, index + 1], steps)
        for layer in self.layers:
            attention, x = layer.self_attn, layer.input_layernorm(hidden)
            keys, values = attention.key_value(context, cos[place], sin[place])
            own_keys, own_values = attention.key_value(x, cos[stands], sin[stands])
            query = attention.query(x, cos[stands], sin[stands]).unflatten(2, (keys.shape[1], -1)).permute(0, 2, 3, 1, 4)
            attended = draft_attention(
                query.flatten(1, 3), keys, values, list(zip(own_keys.unbind(1), own_values.unbind(1), strict=True)), layout
            )
            attended = attended.view_as(query).permute(0, 3, 1, 2, 4).flatten(2)
            hidden = layer.finish(hidden, attended)
        padded = document * documents.window + entry
        return [
            hidden.new_zeros(rows * documents.window, hidden.shape[-1])
            .index_copy(0, padded, hidden[:, step + 1])
            .view(rows, documents.window, -1)
            for step in range(steps)
        ]

    def scored(
        self, hidden: Float[Tensor, "*rows hidden"], step: int
    ) -> tuple[Float[Tensor, "*rows hidden"], Float[Tensor, "vocab hidden"]]:
        return self.norm(hidden), self.of_target().head

    def drafter(self, greedy: bool = False) -> DFlashDrafter:
        return DFlashDrafter(self, greedy)

    def write(self, directory: Path, options: SaveOptions) -> None:
        save_dflash(self.config, self.state_dict(), directory, options)

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> DFlash:
        return cls(read_dflash_config(directory, raw))


def _anchors(documents: DocumentWindows) -> Tensor:
    """The entries of each window at which a block begins. [documents, window]"""
    if documents.anchors is not None:
        return documents.anchors
    entries = torch.arange(documents.window, device=documents.ids.device)
    if documents.windows is not None:
        return entries < documents.windows[:, None]
    return entries + documents.start[:, None] + 1 < documents.ids.shape[1]


class DFlashDrafter:
    """A `model_ops.decoding.drafters.Drafter`: one block of drafts per round, over a ragged cache of keys and values of the
    target's states. Proposes its argmax at temperature 0, or at any if `greedy`; otherwise samples each draft independently.
    Only cache entries from the target's own states stay visible. Entries of a block lie behind them, and entries from the
    states that the target computed while verifying the block overwrite them. Servers do the same."""

    def __init__(self, model: DFlash, greedy: bool = False):
        model.of_target()  # fails before a prompt is read if no target is attached
        self.model, self.greedy = model, greedy
        self.capture = model.capture
        self.target_ids = model.target_ids
        self.rotary = RotaryTable(model.rotary, model.fc.weight.dtype)
        self.cache = new_cache(model.config, model.fc, 0)
        self.anchor = self.target_ids[:0]
        """The token that the target drew last in each row, at the position of the cache's length."""

    @torch.no_grad()
    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        first: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        self.cache = new_cache(self.model.config, self.model.fc, len(prompts))
        self._extend(torch.tensor([len(prompt) for prompt in prompts], device=first.device), captured)
        self.anchor = first

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        """Proposes a block of drafts. Raises ModelError if `count` exceeds the drafts of a block."""
        model, cache = self.model, self.cache
        if count > model.longest_chain:
            raise ModelError(
                f"this drafter was trained for blocks of {model.longest_chain} drafts; set num_speculative_tokens "
                "to at most that"
            )
        cache.reserve(1 + count)
        positions = cache.positions(1 + count)
        cos, sin = self.rotary.at(positions, cache.longest + 1 + count)
        hidden = model.embed(self.anchor, count)
        for number, layer in enumerate(model.layers):
            attention, x = layer.self_attn, layer.input_layernorm(hidden)
            attended = cache.attend(
                number, attention.query(x, cos, sin), *attention.key_value(x, cos, sin), positions=positions, causal=False
            )
            hidden = layer.finish(hidden, attended)
        return independent_drafts(model.logits(hidden[:, 1:]), 0 if self.greedy else temperature, uniforms, self.target_ids)

    @torch.no_grad()
    def advance(
        self,
        emitted: Int[Tensor, "rows tokens"],
        counts: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        self._extend(counts, captured)
        self.anchor = emitted.gather(1, counts[:, None] - 1).squeeze(1)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.cache.keep(rows)
        self.anchor = self.anchor[rows]

    def _extend(self, counts: Tensor, captured: Tensor | None) -> None:
        """Adds cache entries from the target's states; the first counts[row] of each row are valid."""
        if captured is None:
            raise ValueError("DFlash drafts from the target's hidden states, and none are given")
        tokens = captured.shape[1]
        self.cache.reserve(tokens)
        positions = self.cache.positions(tokens)
        cos, sin = self.rotary.at(positions, self.cache.longest + tokens)
        context = self.model.context(captured)
        for number, layer in enumerate(self.model.layers):
            self.cache.store(number, *layer.self_attn.key_value(context, cos, sin), positions=positions)
        self.cache.lengths = self.cache.lengths + counts
