"""Drafts with a target's own multi-token-prediction (MTP) layer, trained further (MiMo's format, vLLM's method `mtp`).

At index j the layer reads the target's last state and the embedding of x[j+1], and predicts x[j+2] with the target's head:

    x = input_proj(concat(hidden_layernorm(state), token_layernorm(embedding)))
    hidden = x + attention(input_layernorm(x)); hidden = hidden + mlp(post_attention_layernorm(hidden))
    logits = lm_head(final_layernorm(hidden)); the next step reads `final_layernorm(hidden)` instead of the state

Servers run the layer K times on its own output, so it is trained for K steps with shared weights (FastMTP, arXiv 2509.18362).
As in vLLM, the embedding is zero at position 0, and rotary positions equal the index. MiMo trained the layer on the state
before the target's final norm, servers of a plain Qwen2 pass the state after it: `hidden_layernorm` is divided by this norm's
weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from model_ops.decoding import FINAL, Runner
from model_ops.families import LAYER, drafter_shape
from model_ops.jobs import ModelError
from model_ops.models import read_config
from model_ops.speculators.backbone.draft_layers import Attention, BodyLayer, Mlp, Norm, RepeatedBody, unroll
from model_ops.speculators.decoder_config import DecoderConfig
from model_ops.speculators.draft_model import DocumentWindows, SaveOptions, in_dtype, name_of, write_directory
from model_ops.speculators.eagle3.network import Eagle3Drafter
from model_ops.speculators.mtp.verification import MTP, is_mtp

SMALLEST_NORM = 1e-3
"""Weights of the final norm below this are not used as divisors; such a channel carries no information."""


class MtpConfig(DecoderConfig):
    """Config that determines the module's shapes and rotary positions."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def qwen2(self) -> Any:
        """The config of a Qwen2 model with such a layer."""
        from transformers import Qwen2Config

        return Qwen2Config(**self.fields(), num_hidden_layers=self.target_layers, tie_word_embeddings=False)


class _Attention(Attention):
    """Qwen2's attention with its input norm; its input is the residual stream."""

    def __init__(self, config: MtpConfig):
        super().__init__(config, config.hidden_size, biased=True)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def query(self, x: Float[Tensor, "*tokens hidden"], cos: Tensor, sin: Tensor) -> Tensor:
        return super().query(self.input_layernorm(x), cos, sin)

    def key_value(self, x: Float[Tensor, "*tokens hidden"], cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return super().key_value(self.input_layernorm(x), cos, sin)


class _Layer(BodyLayer):
    def __init__(self, config: MtpConfig):
        super().__init__()
        hidden = config.hidden_size
        self.token_layernorm = Norm(hidden, config.rms_norm_eps)
        self.hidden_layernorm = Norm(hidden, config.rms_norm_eps)
        self.input_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = Norm(hidden, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def reads(
        self, hidden: Float[Tensor, "*tokens hidden"], embedding: Float[Tensor, "*tokens hidden"]
    ) -> Float[Tensor, "*tokens hidden"]:
        """The start of the residual stream: the projection of both inputs, each normalised."""
        return self.input_proj(torch.cat((self.hidden_layernorm(hidden), self.token_layernorm(embedding)), dim=-1))

    def residual(self, hidden: Float[Tensor, "*tokens hidden"], x: Float[Tensor, "*tokens hidden"]) -> Tensor:
        """The tensor that attention's output is added to."""
        return x


class Mtp(RepeatedBody):
    """The draft model: the layer, and the target's embedding and head, frozen."""

    config: MtpConfig

    def __init__(self, config: MtpConfig):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.midlayer = _Layer(config)
        self.norm = Norm(hidden, config.rms_norm_eps)  # final_layernorm
        self.lm_head = nn.Linear(hidden, config.vocab_size, bias=False)
        for frozen in (self.embed_tokens, self.lm_head):
            frozen.weight.requires_grad_(False)
        self.register_buffer("ids", torch.arange(config.vocab_size), persistent=False)
        from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

        self.rotary = Qwen2RotaryEmbedding(config.qwen2())

    @property
    def body(self) -> list[_Layer]:
        return [self.midlayer]

    @property
    def fc(self) -> nn.Linear:
        """The projection of its inputs, whose dtype is the module's."""
        return self.midlayer.input_proj

    @property
    def capture(self) -> tuple[int, ...]:
        return (FINAL,)

    @property
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        return self.ids

    @classmethod
    def new(cls, settings: Any, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> Mtp:
        return cls.for_target(target, Path(settings.mtp_layer))

    @classmethod
    def for_target(cls, target: Runner, layer_of: Path) -> Mtp:
        """The layer in the directory `layer_of`, for this target. Raises ModelError if it is missing or another model's."""
        served = target.config
        shape = {**drafter_shape(served), "rope_parameters": dict(served.rope_parameters)}
        model = cls(MtpConfig(**shape, vocab_size=served.vocab_size, target_layers=served.num_hidden_layers))
        model = model.to(target.device)
        layer = read_layer(layer_of)
        expected = {name: tensor for name, tensor in model.state_dict().items() if name in NAMES}
        for name, tensor in expected.items():
            if layer[NAMES[name]].shape != tensor.shape:
                raise ModelError(
                    f"mtp_layer: {layer_of}: {NAMES[name]} is {list(layer[NAMES[name]].shape)}, the "
                    f"target asks for {list(tensor.shape)}: it is another model's layer"
                )
        with torch.no_grad():
            for name, tensor in expected.items():
                tensor.copy_(layer[NAMES[name]])
            model.embed_tokens.weight.copy_(target.embedding.float())
            model.lm_head.weight.copy_(target.head.weight.float())
            model.read_states_after(target.final_norm.float())
        return model

    def read_states_after(self, final_norm: Float[Tensor, " hidden"]) -> None:
        """Adapts a layer that was trained on states before the target's final norm to states after it. Exact if all weights of
        the norm are equal; otherwise each state is scaled according to its energy in the channels."""
        scale = final_norm.pow(2).mean().sqrt()
        weight = self.midlayer.hidden_layernorm.weight
        weight.copy_(torch.where(final_norm.abs() > SMALLEST_NORM, weight * scale / final_norm, 0.0))

    def fuse(self, captured: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        """The target's state, unchanged."""
        return captured

    def fed_back(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens hidden"]:
        """The layer's output as the next draft step's state."""
        return self.norm(hidden)

    def embed(self, tokens: Int[Tensor, "*tokens"], positions: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        """Embeddings of tokens at rotary positions; zero at position 0, as in servers."""
        return self.embed_tokens(tokens) * (positions > 0)[..., None]

    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        return unroll(self, documents, steps)

    def drafter(self, greedy: bool = False) -> Eagle3Drafter:
        return Eagle3Drafter(self, greedy)

    def write(self, directory: Path, options: SaveOptions) -> None:
        state = self.state_dict()
        weights = {
            **{NAMES[name]: state[name] for name in NAMES},
            "model.embed_tokens.weight": self.embed_tokens.weight,
            "lm_head.weight": self.lm_head.weight,
        }
        write_directory(directory, in_dtype(weights, options.dtype), mtp_config(self.config, options.dtype))

    @classmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> Mtp:
        fields = {name: raw.get(name) for name in MtpConfig.model_fields if name not in ("target_layers", "num_layers")}
        try:
            return cls(MtpConfig.model_validate({**fields, "target_layers": raw.get("num_hidden_layers")}))
        except ValidationError as error:
            problem = error.errors()[0]
            raise ModelError(f"{directory / 'config.json'}: {problem['loc'][0]}: {problem['msg']}") from error

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: weights[stored] for name, stored in NAMES.items() if stored in weights}
        shared = {"embed_tokens.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
        return {**own, **{name: weights[stored] for name, stored in shared.items() if stored in weights}}


PLACES = {"norm": "final_layernorm", "midlayer.self_attn.input_layernorm": "input_layernorm"}
NAMES = {
    name: LAYER
    + next(
        (name.replace(own, served, 1) for own, served in PLACES.items() if name.startswith(f"{own}.")),
        name.removeprefix("midlayer."),
    )
    for name in (
        "midlayer.input_proj.weight",
        "norm.weight",
        "midlayer.token_layernorm.weight",
        "midlayer.hidden_layernorm.weight",
        "midlayer.self_attn.input_layernorm.weight",
        "midlayer.post_attention_layernorm.weight",
        *(f"midlayer.self_attn.{name}_proj.{kind}" for name in "qkv" for kind in ("weight", "bias")),
        "midlayer.self_attn.o_proj.weight",
        *(f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    )
}
"""Name of each tensor in the module -> its name in files."""


def read_layer(directory: Path) -> dict[str, Tensor]:
    """The layer's tensors from a directory's safetensors files, or from its `mtp/`. Raises ModelError if there are none."""
    if (directory / "config.json").exists() and is_mtp(read_config(directory)):
        raise ModelError(
            f"mtp_layer: {directory} is a drafter trained by millrace, which reads other states than the base "
            "model's layer: give it as continue_from"
        )
    layer: dict[str, Tensor] = {}
    for path in (*sorted(directory.glob("*.safetensors")), *sorted((directory / "mtp").glob("*.safetensors"))):
        try:
            with safe_open(path, framework="pt") as tensors:
                layer.update(
                    {
                        name: tensors.get_tensor(name)
                        for name in tensors.keys()  # noqa: SIM118 (not a dict)
                        if name.startswith(LAYER)
                    }
                )
        except (SafetensorError, OSError) as error:
            raise ModelError(f"mtp_layer: {path} is truncated or damaged: copy it again") from error
    if not layer:
        raise ModelError(
            f"mtp_layer: {directory} holds no tensor {LAYER}*, so it has no supported multi-token-prediction "
            "layer (MiMo-7B has one); choose architecture eagle3"
        )
    missing = sorted(set(NAMES.values()) - set(layer))
    if missing:
        raise ModelError(f"mtp_layer: {directory} lacks {missing[0]} of its multi-token-prediction layer: copy the model again")
    return layer


def mtp_config(config: MtpConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json: a Qwen2 with MiMo's architecture name and one MTP layer."""
    rope = config.rope_parameters
    return {
        **config.fields(),
        "architectures": [MTP],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "dtype": name_of(dtype),
        "hidden_act": "silu",
        "model_type": "qwen2",
        "num_hidden_layers": config.target_layers,
        "num_nextn_predict_layers": 1,
        "rope_theta": rope.get("rope_theta", 10_000.0),
        "tie_word_embeddings": False,
        "torch_dtype": name_of(dtype),
        "use_cache": True,
        "use_sliding_window": False,
    }
