"""EAGLE-3 and EAGLE-3.1 draft models (Li et al. 2025, arXiv 2503.01840). Tensor names of servers' "midlayer" layout.

The first layer reads the target's hidden states at three block boundaries (fused by `fc`) and the embedding of the next token,
and predicts the token after it. On later draft steps it reads its own output instead of the target's states:

    residual = hidden; x = concat(input_layernorm(embedding), hidden_norm(hidden))
    hidden = residual + attention(x); hidden = hidden + mlp(post_attention_layernorm(hidden))
    logits = lm_head(norm(hidden)); the next step is fed `hidden` before `norm`

Further layers are plain Llama layers before `norm`. EAGLE-3.1 normalises each state before they are fused (`fc_norm`), and
feeds `norm(hidden)` to the next step (`norm_output`); served with another flag than in training, weights draft badly without
an error. Boundary k is the INPUT of block k, as in vLLM. At index j the layer reads the embedding of x[j+1] and the states at
j, has rotary position j, and predicts x[j+2]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Float32, Int
from pydantic import ValidationError
from torch import Tensor, nn

from model_ops.decoding import DraftChain, Proposal, RotaryTable, Runner
from model_ops.jobs import ModelError
from model_ops.speculators.backbone.draft_layers import DraftLayer, Norm, RepeatedBody, new_cache, unroll
from model_ops.speculators.decoder_config import FUSED_STATES, MOST_LAYERS, Eagle3Config, rope_of, speculators_name
from model_ops.speculators.draft_model import (
    DocumentWindows,
    SaveOptions,
    decoder_fields,
    in_dtype,
    rotary_embedding,
    speculators_fields,
    write_both_layouts,
)


class Eagle3Drafter:
    """A `model_ops.decoding.drafters.Drafter` that proposes its argmax at temperature 0 and samples at other temperatures.
    greedy: propose the argmax at any temperature."""

    def __init__(self, model: RepeatedBody, greedy: bool = False):
        self.model, self.greedy = model, greedy
        self.capture = model.capture
        self.target_ids = model.target_ids
        self.rotary = RotaryTable(model.rotary, model.fc.weight.dtype)
        self.cache = new_cache(model.config, model.fc, 0)
        self.hidden = torch.empty(0, model.config.hidden_size)
        """The body's output at each row's latest entry, from which the next draft is computed. [rows, hidden]"""

    @torch.no_grad()
    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        first: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        device, longest = first.device, max(map(len, prompts))
        self.cache = new_cache(self.model.config, self.model.fc, len(prompts))
        # index j reads token j + 1; the last index of the prompt reads the first token of the answer
        following = torch.tensor(
            [
                [*prompt[1:], token, *[0] * (longest - len(prompt))]
                for prompt, token in zip(prompts, first.tolist(), strict=True)
            ],
            device=device,
        )
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._extend(following, lengths, captured)

    @torch.no_grad()
    def propose(self, count: int, temperature: float, uniforms: Float32[Tensor, "rows drafts"]) -> Proposal:
        hidden, lengths, chain = self.hidden, self.cache.lengths, DraftChain(temperature, uniforms, self.greedy)
        for step in range(count):
            index = chain.add(self.model.logits(hidden))
            if step + 1 < count:
                embedding = self.model.embed(self.target_ids[index][:, None], self.cache.positions(1))
                hidden = self._body(self.model.fed_back(hidden)[:, None], embedding)[:, 0]
                self.cache.advance(1)
        self.cache.lengths = lengths
        return chain.proposal(self.target_ids)

    @torch.no_grad()
    def advance(
        self,
        emitted: Int[Tensor, "rows tokens"],
        counts: Int[Tensor, " rows"],
        captured: Float[Tensor, "rows tokens features"] | None,
    ) -> None:
        self._extend(emitted, counts, captured)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.cache.keep(rows)
        self.hidden = self.hidden[rows]

    def _extend(self, following: Tensor, counts: Tensor, captured: Tensor | None) -> None:
        """Adds cache entries from the target's states; the first counts[row] of each row are valid."""
        if captured is None:
            raise ValueError(f"{type(self.model).__name__} drafts from the target's hidden states, and none are given")
        embedding = self.model.embed(following, self.cache.positions(following.shape[1]))
        hidden = self._body(self.model.fuse(captured.to(self.model.fc.weight.dtype)), embedding)
        self.cache.lengths = self.cache.lengths + counts
        self.hidden = hidden[torch.arange(len(counts), device=counts.device), counts - 1]

    def _body(
        self, hidden: Float[Tensor, "rows entries hidden"], embedding: Float[Tensor, "rows entries hidden"]
    ) -> Float[Tensor, "rows entries hidden"]:
        """One pass over the next entries of every row."""
        entries = hidden.shape[1]
        self.cache.reserve(entries)
        positions = self.cache.positions(entries)
        cos, sin = self.rotary.at(positions, self.cache.longest + entries)
        for number, layer in enumerate(self.model.body):
            x = layer.reads(hidden, embedding)
            key, value = layer.self_attn.key_value(x, cos, sin)
            attended = self.cache.attend(number, layer.self_attn.query(x, cos, sin), key, value, positions)
            hidden = layer.finish(layer.residual(hidden, x), attended)
        return hidden


def save_eagle3(config: Eagle3Config, tensors: dict[str, Tensor], directory: Path, options: SaveOptions) -> None:
    """Writes both layouts."""
    weights = in_dtype(tensors, options.dtype)
    renamed = {speculators_name(name): tensor for name, tensor in weights.items()}
    trained_with = {"fc_norm": config.fc_norm, "norm_output": config.norm_output}
    in_speculators_layout = renamed, speculators_config(config, options)
    write_both_layouts(directory, weights, midlayer_config(config, options.dtype), in_speculators_layout, trained_with)


def midlayer_config(config: Eagle3Config, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of the midlayer layout (reference: SpecForge's configs, read by SGLang and vLLM)."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_llama_fields(config, dtype),
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(config.layer_ids),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in config.layer_ids],
            "use_aux_hidden_state": True,
        },
        "fc_norm": config.fc_norm,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": config.norm_output,
        "num_aux_hidden_states": len(config.layer_ids),
        "target_hidden_size": config.hidden_size,
        "target_num_hidden_layers": config.target_layers,
    }


def speculators_config(config: Eagle3Config, options: SaveOptions) -> dict[str, Any]:
    """config.json of the speculators layout with every flag explicit, because defaults differ between servers and trainers."""
    layers = {"architectures": ["LlamaForCausalLM"], **_llama_fields(config, options.dtype)}
    return {
        **speculators_fields("eagle3", options, layers),
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(config.layer_ids),
        "embed_requires_grad": False,
        "fc_norm": config.fc_norm,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": config.norm_output,
    }


def read_midlayer_config(directory: Path, raw: dict[str, Any]) -> Eagle3Config:
    """The module's config from a midlayer config.json; layer ids default to the servers' defaults. Raises ModelError for
    missing or unsupported fields."""
    where, eagle = directory / "config.json", raw.get("eagle_config")
    layer_ids = raw.get("eagle_aux_hidden_state_layer_ids")
    if layer_ids is None:
        layer_ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
        if layer_ids is None:
            raise ModelError(f"{where} has no eagle_aux_hidden_state_layer_ids; add the boundaries")
        layer_ids = [output + 1 if type(output) is int else output for output in layer_ids]
    names = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "draft_vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    )
    missing = [name for name in names if raw.get(name) is None]
    if missing:
        raise ModelError(f"{where} lacks {missing[0]}")
    wrong = [name for name in names if type(raw[name]) not in (int, float) or raw[name] <= 0]
    if wrong:
        raise ModelError(f"{where}: {wrong[0]} is {raw[wrong[0]]!r}, not a number above 0")
    if not isinstance(layer_ids, list) or len(layer_ids) != 3:
        listed = f"{len(layer_ids)} layer ids" if isinstance(layer_ids, list) else repr(layer_ids)
        raise ModelError(f"{where} names {listed}, not 3")
    for flag in ("norm_before_residual", "norm_before_fc"):
        if raw.get(flag):
            raise ModelError(f"{where}: {flag} is true, which is not supported: give a head without it")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"{where}: hidden_act is {raw['hidden_act']!r}; only silu is supported")
    layers = raw.get("num_hidden_layers", 1)
    if type(layers) is not int or not 1 <= layers <= MOST_LAYERS:
        raise ModelError(f"{where}: num_hidden_layers is {layers!r}, not 1 to {MOST_LAYERS}")
    try:
        return Eagle3Config(
            **{name: raw[name] for name in names},
            num_layers=layers,
            fc_norm=bool(raw.get("fc_norm")),
            norm_output=bool(raw.get("norm_output")),
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            rope_parameters=rope_of(raw, 10_000.0),
            layer_ids=tuple(layer_ids),
            target_layers=raw.get("target_num_hidden_layers") or max(layer_ids) + 1,
            eos_token_id=raw.get("eos_token_id"),
            bos_token_id=raw.get("bos_token_id"),
            pad_token_id=raw.get("pad_token_id"),
        )
    except (ValidationError, TypeError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("layer_ids",), "msg": str(error)}
        raise ModelError(f"{where}: {problem['loc'][0]}: {problem['msg']}") from error


def _llama_fields(config: Eagle3Config, dtype: torch.dtype) -> dict[str, Any]:
    return {**decoder_fields(config, dtype), "mlp_bias": False, "model_type": "llama"}


class Eagle3(RepeatedBody):
    """The draft model. `embed_tokens` is the target's and stays frozen; `d2t` maps draft ids: target = id + d2t[id]."""

    config: Eagle3Config

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.embed_tokens.weight.requires_grad_(False)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(hidden, config.rms_norm_eps) for _ in range(FUSED_STATES))
        self.fc = nn.Linear(FUSED_STATES * hidden, hidden, bias=False)
        self.midlayer = DraftLayer(config, first=True)
        if config.num_layers > 1:  # servers' names: layers.1, layers.2, ...
            self.layers = nn.ModuleDict(
                {str(number): DraftLayer(config, first=False) for number in range(1, config.num_layers)}
            )
        self.norm = Norm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.rotary = rotary_embedding(config)

    @property
    def body(self) -> list[DraftLayer]:
        return [self.midlayer, *(self.layers.values() if self.config.num_layers > 1 else ())]

    @property
    def capture(self) -> tuple[int, ...]:
        return tuple(self.config.layer_ids)

    def begun_from(self, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> Self:
        """Sets the draft vocabulary and initialises weights from the target; returns self."""
        self.set_draft_vocabulary(target_ids)
        self.warm_start(target.embedding.float(), target.head.weight.float(), target.final_norm.float())
        return self

    @property
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        """The target's id of every draft id."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def set_draft_vocabulary(self, target_ids: Int[Tensor, " draft_vocab"]) -> None:
        """Sets the draft vocabulary. Raises ValueError if the ids are not ascending and distinct."""
        if len(target_ids) != self.config.draft_vocab_size or (target_ids.diff() <= 0).any():
            raise ValueError("the draft vocabulary must have draft_vocab_size ascending, distinct ids")
        self.d2t.copy_(target_ids - torch.arange(len(target_ids)))
        self.t2d.zero_()
        self.t2d[target_ids] = True

    def warm_start(
        self,
        embedding: Float[Tensor, "vocab hidden"],
        head: Float[Tensor, "vocab hidden"],
        final_norm: Float[Tensor, " hidden"],
    ) -> None:
        """Copies embedding, output rows and final norm from the target, and initialises `fc` to select the deepest state."""
        with torch.no_grad():
            self.embed_tokens.weight.copy_(embedding)
            self.lm_head.weight.copy_(head[self.target_ids.to(head.device)])
            self.norm.weight.copy_(final_norm)
            hidden = self.config.hidden_size
            nn.init.normal_(self.fc.weight, std=0.02)
            self.fc.weight[:, -hidden:] += torch.eye(hidden, device=self.fc.weight.device)
        for layer in self.body:
            layer.warm_start()

    def fuse(self, captured: Float[Tensor, "*tokens captured_hidden"]) -> Float[Tensor, "*tokens hidden"]:
        if self.config.fc_norm:
            parts = captured.unflatten(-1, (FUSED_STATES, -1)).unbind(-2)
            captured = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(captured)

    def fed_back(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        return self.norm(hidden) if self.config.norm_output else hidden

    def embed(self, tokens: Int[Tensor, "*tokens"], positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        return self.embed_tokens(tokens)

    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        return unroll(self, documents, steps)

    def drafter(self, greedy: bool = False) -> Eagle3Drafter:
        return Eagle3Drafter(self, greedy)

    def write(self, directory: Path, options: SaveOptions) -> None:
        save_eagle3(self.config, self.state_dict(), directory, options)

    @classmethod
    def new(cls, settings: Any, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> Self:
        newer = settings.architecture == "eagle3.1"
        config = Eagle3Config.for_target(
            target.config, len(target_ids), num_layers=settings.num_layers, fc_norm=newer, norm_output=newer
        )
        return cls(config).to(target.device).begun_from(target, target_ids)

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> Eagle3:
        return cls(read_midlayer_config(directory, raw))

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Raises ModelError for a tensor that the module does not have, since ignoring a layer or bias changes the outputs."""
        strange = sorted(name for name in weights if name not in self.state_dict() and not name.endswith(".inv_freq"))
        if strange:
            raise ModelError(f"{strange[0]} is not supported: give a head without biases, with the layers of its config")
        return weights
