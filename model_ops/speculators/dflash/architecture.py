"""DFlash: a whole block of drafts in one pass, with the target's own embedding and head."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeGuard

from pydantic import Field

from model_ops.files import TensorHeader
from model_ops.models import Defect, Shapes, verify_model
from model_ops.speculators.architecture import SAMPLED_DRAFTS, Architecture, Config, SpeculatorsLayout
from model_ops.speculators.decoder_config import captured_boundaries
from model_ops.speculators.serving import SglangOptions, VllmOptions
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.verify_layers import (
    NUMBERS,
    layer_shapes,
    problem,
    verify_against_target,
    verify_proposals,
    verify_rope,
    verify_trained_with,
)

if TYPE_CHECKING:
    from model_ops.speculators.draft_model import DraftModel


Tensors = Mapping[str, TensorHeader]


def verify_dflash(config: Mapping[str, Any], tensors: Tensors, target: Mapping[str, Any] | None = None) -> list[Defect]:
    """A directory in z-lab's layout: config against tensors, and the target if known. Finds errors that do not prevent loading.

    target_layer_ids are layers whose output is read (both servers add 1); aux_hidden_state_layer_ids of the speculators layout
    are boundaries. In vLLM a top-level eagle_aux_hidden_state_layer_ids (boundaries) takes precedence, and eagle_config over
    both. A sliding layer, `causal` or `is_causal` makes vLLM's blocks causal, and is_neox_style changes the rotary order.
    SGLang takes the number of target layers from num_target_layers, or else from the drafter's own layers, and the block length
    from block_size, or else 16. The mask token's embedding is the target's, so a wrong id gives wrong inputs without an error.
    """
    own = config.get("dflash_config")
    if not isinstance(own, Mapping):
        return [problem(f"dflash_config is {own!r}, not an object with mask_token_id and target_layer_ids")]
    problems = verify_model.missing_numbers(config, (*NUMBERS, "num_target_layers"))
    outputs = own.get("target_layer_ids")
    if problems or not _are_whole_numbers(outputs):
        return problems or [problem(f"dflash_config.target_layer_ids is {outputs!r}, not layers of the target")]
    block, mask = own.get("block_size", config.get("block_size")), own.get("mask_token_id", config.get("mask_token_id"))
    problems = _verify_all(config, tensors, target, outputs, block, mask)
    if isinstance(target, Mapping) and config["num_target_layers"] != target.get("num_hidden_layers"):
        problems.append(
            problem(
                f"num_target_layers is {config['num_target_layers']}, the target's layers are {target.get('num_hidden_layers')}"
            )
        )
    boundaries = config.get("eagle_aux_hidden_state_layer_ids")
    if boundaries is not None and boundaries != [output + 1 for output in outputs]:
        problems.append(
            problem(
                f"eagle_aux_hidden_state_layer_ids is {boundaries}, which vLLM reads first, as boundaries: "
                f"one above target_layer_ids {outputs}, or leave it out"
            )
        )
    if config.get("eagle_config"):
        problems.append(problem("eagle_config would be read by vLLM in place of target_layer_ids: leave it out"))
    for name, value in {
        **{f"dflash_config.{name}": own.get(name) for name in ("causal", "use_swa")},
        "is_causal": config.get("is_causal"),
    }.items():
        if value:
            problems.append(problem(f"{name} is {value!r}: the tokens of a block were trained to see each other"))
    return problems


def verify_dflash_in_speculators_layout(
    config: Mapping[str, Any], tensors: Tensors, target: Mapping[str, Any] | None = None
) -> list[Defect]:
    """A directory in the speculators layout: config against tensors, and the target if known."""
    if problems := verify_proposals(config):
        return problems
    layer, boundaries = config["transformer_layer_config"], config.get("aux_hidden_state_layer_ids")
    problems = verify_model.missing_numbers(layer, NUMBERS)
    if problems or not _are_whole_numbers(boundaries):
        return problems or [problem(f"aux_hidden_state_layer_ids is {boundaries!r}, not boundaries of the target")]
    outputs, block = [boundary - 1 for boundary in boundaries], config.get("block_size")
    problems = _verify_all(
        {**layer, "dtype": config.get("dtype")}, tensors, target, outputs, block, config.get("mask_token_id")
    )
    if config.get("sliding_window_non_causal", True) is not True:
        problems.append(
            problem(
                "sliding_window_non_causal is not true: vLLM then makes every layer causal, the tokens of a "
                "block were trained to see each other"
            )
        )
    if config.get("sample_from_anchor", False) is not False:
        problems.append(problem("sample_from_anchor is not false: drafts were trained at the mask tokens alone"))
    if config.get("draft_vocab_size") != layer["vocab_size"]:
        problems.append(
            problem(
                f"draft_vocab_size is {config.get('draft_vocab_size')}: the drafter uses the target's own "
                f"head of {layer['vocab_size']} tokens"
            )
        )
    tokens = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    if type(block) is int and tokens >= block:
        problems.append(problem(f"speculative_tokens is {tokens}, a block of {block} holds {block - 1} drafts"))
    return problems


def _verify_all(
    config: Mapping[str, Any], tensors: Tensors, target: Mapping[str, Any] | None, outputs: list[int], block: Any, mask: Any
) -> list[Defect]:
    """Checks that both layouts share. config: the config of the layers."""
    problems = verify_model.compare_shapes(_shapes(config, len(outputs)), tensors) + verify_model.verify_dtype(config, tensors)
    if config.get("model_type") != "qwen3":
        problems.append(problem(f"model_type is {config.get('model_type')!r}; servers read the layers of a DFlash as qwen3"))
    if type(block) is not int or block < 2:
        problems.append(problem(f"block_size is {block!r}, not a number of at least 2: SGLang would take 16"))
    if type(mask) is not int or not 0 <= mask < config["vocab_size"]:
        problems.append(problem(f"mask_token_id is {mask!r}, not one of the target's {config['vocab_size']} tokens"))
    layers = target.get("num_hidden_layers") if isinstance(target, Mapping) else config.get("num_target_layers")
    if outputs != sorted(set(outputs)):
        problems.append(problem(f"the target's layers {outputs} are not distinct and ascending: servers read them as a set"))
    elif outputs[0] < 0 or (type(layers) is int and outputs[-1] >= layers):
        problems.append(problem(f"the target's layers {outputs} are outside its {layers}"))
    kinds = config.get("layer_types")
    if kinds is not None and kinds != ["full_attention"] * config["num_hidden_layers"]:
        problems.append(problem(f"layer_types is {kinds}: every layer has full attention, a sliding one is causal in vLLM"))
    for name, wanted in (("attention_bias", False), ("is_neox_style", True), ("rope_is_neox_style", True)):
        if config.get(name, wanted) is not wanted:
            problems.append(problem(f"{name} is {config[name]!r}, the weights were trained with {wanted}"))
    problems += verify_trained_with({"block_size": block, "mask_token_id": mask, "target_layer_ids": outputs}, tensors)
    return problems + verify_rope(config) + verify_against_target(config, target)


def _shapes(config: Mapping[str, Any], captured: int) -> Shapes:
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    shapes: Shapes = {"fc.weight": (hidden, captured * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for number in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, f"layers.{number}")
        shapes |= {f"layers.{number}.self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
    return shapes


def _are_whole_numbers(ids: Any) -> TypeGuard[list[int]]:
    return isinstance(ids, list) and len(ids) > 0 and all(type(one) is int for one in ids)


class DFlashSettings(SpeculatorSettings):
    """DFlash (arXiv 2602.06036)."""

    architecture: Literal["dflash"] = Field(description="Kind of drafter")
    num_layers: int | None = Field(
        None, ge=1, le=16, description="Decoder layers of the drafter. Left out: 1, 3 or 5 by preset"
    )
    mask_token_id: int | None = Field(
        None,
        ge=0,
        description="Token id that stands for a token not yet drafted; its embedding is the target's. Left out: "
        "the padding token or the last of the vocabulary",
    )
    block_size: int | None = Field(
        None,
        ge=2,
        le=64,
        description="Tokens of a block, the last verified one and the drafts. Left out: num_speculative_tokens + 1",
    )
    captured_layers: int | None = Field(
        None,
        ge=1,
        le=1_024,
        description="Number of the target's layers whose states it reads. Left out: 5, or as many as a shallow target has",
    )
    gamma: float | None = Field(None, gt=0, description="Draft k weighs exp(-(k - 1) / gamma), k counting from 1. Left out: 4")
    anchors: int | None = Field(
        None,
        ge=1,
        description="Positions of an answer at which a training step drafts, chosen anew each time. Left "
        "out: 64, 256 or 512 by preset",
    )

    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "gamma": 4.0}
    STAY_OPEN: ClassVar[dict[str, str]] = {
        **SpeculatorSettings.STAY_OPEN,
        "mask_token_id": "by the target's vocabulary",
        "captured_layers": "5, or as many as a shallow target has",
    }
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        name: {**SpeculatorSettings.PRESETS[name], **own}
        for name, own in {
            "quick": {"num_layers": 1, "anchors": 64},
            "balanced": {"num_layers": 3, "anchors": 256},
            "thorough": {"num_layers": 5, "anchors": 512},
        }.items()
    }

    @property
    def drafts_at_once(self) -> int:
        """Drafts of a block, with a training step for each."""
        return self.num_speculative_tokens if self.block_size is None else self.block_size - 1

    @property
    def positions_per_answer(self) -> int | None:
        return self.anchors

    @property
    def step_ratio(self) -> float:
        return self.step_decay if self.gamma is None else math.exp(-1 / self.gamma)

    def derived(self) -> dict[str, Any]:
        return {**super().derived(), "ttt_steps": self.drafts_at_once, "block_size": self.num_speculative_tokens + 1}

    def contradictions(self) -> Iterator[str]:
        if self.block_size is not None and self.block_size <= self.num_speculative_tokens:
            yield (
                f"a block of block_size {self.block_size} holds {self.block_size - 1} drafts and "
                f"num_speculative_tokens is {self.num_speculative_tokens}: set block_size to at least one more"
            )
        if self.ttt_steps not in (None, self.drafts_at_once):
            yield (
                f"ttt_steps is {self.ttt_steps}, but dflash has a step for each of a block's drafts "
                f"({self.drafts_at_once}): leave ttt_steps out"
            )
        yield from super().contradictions()
        if self.step_decay != type(self).model_fields["step_decay"].default:
            yield "step_decay is set, but dflash weighs its drafts by gamma: set gamma, or step_weights"


def _check_layers(target: Path, config: Config) -> None:
    """Refuses a target with too few layers to read states from."""
    captured_boundaries(config.get("num_hidden_layers") or 0, None)


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.dflash.network import DFlash

    return DFlash


DFLASH = Architecture(
    name="dflash",
    settings=DFlashSettings,
    model_class=_model_class,
    verify=verify_dflash,
    recognises=lambda config: config.get("architectures") == ["DFlashDraftModel"] and "speculators_model_type" not in config,
    speculators_layout=SpeculatorsLayout("dflash", verify_dflash_in_speculators_layout),
    check_target=_check_layers,
    vllm=VllmOptions("dflash", SAMPLED_DRAFTS),
    sglang=SglangOptions("DFLASH", drafts_in_one_step=True),
)
