"""The interface of every drafter: batches of documents, training forward, decoding, saving and loading. At index j of a
document a drafter knows the target's hidden states at j and before, and the tokens up to x[j+1]; its step k predicts x[j+2+k].

    outputs = model.unroll(documents, steps)                      # training: what each draft step's head reads
    rows, weight = model.scored(outputs[0].flatten(0, 1), 0)      # logits of step 0 are rows @ weight.T
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel
from safetensors.torch import save_file
from torch import Tensor, nn

from model_ops.decoding import Drafter, Runner
from model_ops.files import renamed_when_complete, tensor_files
from model_ops.speculators.decoder_config import DecoderConfig
from model_ops.speculators.verify_layers import SPECULATORS_LAYOUT, TRAINED_WITH


class DraftModel(nn.Module, ABC):
    """The weights of a drafter. Its `config` determines the shape of every tensor."""

    config: BaseModel
    trained_for: ClassVar[tuple[str, ...]] = ()
    """Config fields that the weights depend on although no tensor's shape shows them."""
    kind: str = ""
    """Name of its architecture in recipes and reports. The factory sets it."""

    @property
    @abstractmethod
    def capture(self) -> tuple[int, ...]:
        """Block boundaries of the target whose states it reads; empty if it reads none."""

    @property
    def longest_chain(self) -> int | None:
        """Most tokens it can draft per verification; None if its last step can be repeated without limit."""
        return None

    @property
    @abstractmethod
    def target_ids(self) -> Int[Tensor, " draft_vocab"]:
        """The target's token id of every draft id, ascending."""

    @abstractmethod
    def unroll(self, documents: DocumentWindows, steps: int) -> list[Float[Tensor, "documents window hidden"]]:
        """Training forward: for each draft step, the states that its head reads, at every entry of the window."""

    @abstractmethod
    def scored(
        self, hidden: Float[Tensor, "*rows hidden"], step: int
    ) -> tuple[Float[Tensor, "*rows width"], Float[Tensor, "draft_vocab width"]]:
        """The two factors of a step's logits, rows @ weight.T, from rows of `unroll(...)[step]`; float32."""

    def attach(self, target: Runner) -> Self:
        """Take embedding and head from the target, for architectures whose files hold neither; returns self. Needed after
        `load_draft_model`, before `drafter`, `unroll` and `scored`; a new drafter is attached already."""
        return self

    def ready_to_draft(self, dtype: torch.dtype) -> Self:
        """Switch to inference with weights in `dtype`; returns self. Buffers keep their dtype: rotary frequencies rounded to
        bfloat16 would encode other positions."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        return self.eval().requires_grad_(False)

    @abstractmethod
    def drafter(self, greedy: bool = False) -> Drafter:
        """The drafter for the decoder. greedy: always propose the most likely token, as servers do that do not sample drafts
        (vLLM's default); otherwise sample at the temperature of the answers."""

    def save(
        self,
        directory: Path,
        num_speculative_tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        verifier: str = "target",
        verifier_architectures: list[str] | None = None,
    ) -> None:
        """Write the directory that servers load, weights in `dtype`. verifier: path or Hub id of the target, for the server's
        config."""
        self.write(directory, SaveOptions(num_speculative_tokens, dtype, verifier, verifier_architectures or []))

    @abstractmethod
    def write(self, directory: Path, options: SaveOptions) -> None:
        """See `save`."""

    @classmethod
    @abstractmethod
    def new(cls, settings: Any, target: Runner, target_ids: Int[Tensor, " draft_vocab"]) -> DraftModel:
        """A new drafter on the target's device from resolved settings of its architecture. target_ids: of the draft
        vocabulary."""

    @classmethod
    @abstractmethod
    def from_config(cls, directory: Path, raw: dict[str, Any]) -> DraftModel:
        """Build the module that a config.json describes, without weights. Raises ModelError for a missing or wrong field."""

    def stored(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The module's state dict from the tensors of a file; override where the file's names differ."""
        return weights


@dataclass(frozen=True)
class SaveOptions:
    """How a drafter is saved, as `DraftModel.save` says."""

    num_speculative_tokens: int
    dtype: torch.dtype
    verifier: str
    verifier_architectures: list[str]


@dataclass(frozen=True)
class DocumentWindows:
    """Documents padded on the right to one length, and the window of each that step 0 is trained on.

    Entry a of a window has index j = start + a.

    ids: tokens x[0..]
    captured: the target's hidden states at the block boundaries that the drafter reads
    start: index j of each window's first entry
    window: number of entries in the longest window
    windows: number of entries of each window; None: all windows have the longest length
    anchors: the entries at which a block drafter begins a block; None: all
    on_host: start and windows as lists, where the caller has them: reading them from an accelerator waits for it"""

    ids: Int[Tensor, "documents tokens"]
    captured: Float[Tensor, "documents tokens captured_hidden"]
    start: Int[Tensor, " documents"]
    window: int
    windows: Int[Tensor, " documents"] | None = None
    anchors: Bool[Tensor, "documents window"] | None = None
    on_host: tuple[list[int], list[int]] | None = None


def in_dtype(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors for a file: on the CPU, contiguous, floating-point ones in `dtype`."""
    return {
        name: tensor.detach().cpu().to(dtype).contiguous() if tensor.is_floating_point() else tensor.cpu()
        for name, tensor in weights.items()
    }


def write_directory(
    directory: Path, weights: dict[str, Tensor], config: dict[str, Any], metadata: dict[str, str] | None = None
) -> None:
    """Writes model.safetensors, with `metadata` in its header and visible only when complete, and config.json."""
    with renamed_when_complete(directory / "model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt", **(metadata or {})})
        tensor_files.order_metadata(temporary)
        temporary.chmod(0o644)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_both_layouts(
    directory: Path,
    weights: dict[str, Tensor],
    config: dict[str, Any],
    in_speculators_layout: tuple[dict[str, Tensor], dict[str, Any]],
    trained_with: dict[str, Any],
) -> None:
    """Writes a drafter's directory, and below it the same weights in the speculators layout (tensors, config.json).
    trained_with: values of training that the weights depend on, for the header of both files."""
    metadata = {TRAINED_WITH: json.dumps(trained_with)}
    write_directory(directory / SPECULATORS_LAYOUT, *in_speculators_layout, metadata)
    write_directory(directory, weights, config, metadata)


def speculators_fields(algorithm: str, options: SaveOptions, layers: dict[str, Any]) -> dict[str, Any]:
    """Fields that config.json of the speculators layout has for every algorithm. layers: the config of its decoder layers."""
    proposal = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": options.num_speculative_tokens,
        "verifier_accept_k": 1,
    }
    return {
        "dtype": name_of(options.dtype),
        "has_no_defaults_at_init": False,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"architectures": options.verifier_architectures, "name_or_path": options.verifier},
        },
        "speculators_model_type": algorithm,
        "speculators_version": "0.6.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "torch_dtype": name_of(options.dtype),
        "transformer_layer_config": layers,
    }


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype in config.json, such as bfloat16."""
    return str(dtype).removeprefix("torch.")


ROPE_KEYS_OF_V4 = (
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow",
)  # fmt: skip


def decoder_fields(config: DecoderConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Fields of all kinds of layers: shapes, positions, eos ids. dtype: of the weights."""
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    scaling = None
    if kind != "default":
        scaling = {"rope_type": kind, **{key: rope[key] for key in ROPE_KEYS_OF_V4 if key in rope}}
    return {
        **config.fields(),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": name_of(dtype),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "num_hidden_layers": config.num_layers,
        # transformers 5 reads rope_parameters, transformers 4 these two fields
        "rope_scaling": scaling,
        "rope_theta": rope.get("rope_theta", 10_000.0),
        "tie_word_embeddings": False,
        "torch_dtype": name_of(dtype),
        "use_cache": True,
    }


def rotary_embedding(config: DecoderConfig) -> nn.Module:
    """transformers' rotary embedding for the positions of a drafter's decoder layers."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=config.rope_parameters,
        )
    )
