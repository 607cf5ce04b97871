"""EAGLE-3 and EAGLE-3.1: a decoder layer that reads three hidden states of the target and is run again for each draft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from model_ops.files import TensorHeader
from model_ops.models import Defect, Shapes, verify_model
from model_ops.speculators.architecture import SAMPLED_DRAFTS, Architecture, Config, SpeculatorsLayout
from model_ops.speculators.decoder_config import MOST_LAYERS, default_layer_ids, speculators_name
from model_ops.speculators.serving import SglangOptions, VllmOptions
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.verify_layers import (
    NUMBERS,
    layer_shapes,
    problem,
    verify_against_target,
    verify_ends,
    verify_proposals,
    verify_rope,
    verify_trained_with,
)

if TYPE_CHECKING:
    from model_ops.speculators.draft_model import DraftModel


def verify_eagle3(
    config: Mapping[str, Any], tensors: Mapping[str, TensorHeader], target: Mapping[str, Any] | None = None
) -> list[Defect]:
    """A midlayer directory: config against tensors, vocabulary map, layer ids both ways, and the target if known. Finds errors
    that do not prevent loading but cost acceptance: layer ids that are boundaries in one field and blocks in another; a d2t
    that is not an offset; a short max_position_embeddings; a missing flag, whose default differs between servers; a flag that
    the weights were not trained with."""
    problems = verify_model.missing_numbers(config, (*NUMBERS, "draft_vocab_size"))
    if problems:
        return problems
    problems += verify_model.compare_shapes(expected_shapes(config, config, "midlayer"), tensors, {"embed_tokens.weight"})
    problems += verify_model.verify_dtype(config, tensors) + _verify_map(config["vocab_size"], tensors, target)
    problems += verify_trained_with(config, tensors)
    if config.get("norm_before_residual", False) is not False:
        problems.append(problem("norm_before_residual must be false in the midlayer layout"))
    boundaries = config.get("eagle_aux_hidden_state_layer_ids")
    problems += _verify_layer_ids(boundaries, config.get("target_num_hidden_layers"), target)
    eagle = config.get("eagle_config")
    outputs = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, Mapping) else None
    if not problems and isinstance(boundaries, list) and outputs != [boundary - 1 for boundary in boundaries]:
        problems.append(
            problem(
                f"eagle_config.eagle_aux_hidden_state_layer_ids is {outputs}; it must be one below the top-level boundaries "
                f"{boundaries}"
            )
        )
    return problems + verify_rope(config) + verify_against_target(config, target)


def verify_eagle3_in_speculators_layout(
    config: Mapping[str, Any], tensors: Mapping[str, TensorHeader], target: Mapping[str, Any] | None = None
) -> list[Defect]:
    """A directory in the speculators layout: config against tensors, and the target if known."""
    layer = config["transformer_layer_config"]
    problems = verify_model.missing_numbers(layer, NUMBERS) + verify_model.missing_numbers(config, ("draft_vocab_size",))
    if problems:
        return problems
    problems += verify_model.compare_shapes(expected_shapes(layer, config, "layers.0"), tensors)
    problems += verify_model.verify_dtype(config, tensors) + _verify_map(layer["vocab_size"], tensors, target)
    problems += verify_trained_with(config, tensors)
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        if not isinstance(config.get(flag), bool):
            problems.append(problem(f"{flag} is not true or false, and defaults of servers differ: write it"))
        elif config[flag] and flag.startswith("norm_before"):
            problems.append(problem(f"{flag} is true, but these weights were trained without it"))
    problems += _verify_layer_ids(config.get("eagle_aux_hidden_state_layer_ids"), None, target)
    problems += verify_proposals(config)
    return problems + verify_rope(layer) + verify_against_target(layer, target)


def expected_shapes(config: Mapping[str, Any], head: Mapping[str, Any], layer: str) -> Shapes:
    """Shape of every tensor of an EAGLE-3 head. head: config with draft_vocab_size and flags. layer: name of the first
    layer."""
    hidden = config["hidden_size"]
    body: Shapes = {f"{layer}.hidden_norm.weight": (hidden,), **layer_shapes(config, layer, 2 * hidden)}
    for number in range(1, min(config["num_hidden_layers"], MOST_LAYERS + 1)):
        body |= layer_shapes(config, f"layers.{number}")
    return {
        "embed_tokens.weight": (config["vocab_size"], hidden),
        "fc.weight": (hidden, 3 * hidden),
        **({f"fc_norm.{state}.weight": (hidden,) for state in range(3)} if head.get("fc_norm") else {}),
        **body,
        "norm.weight": (hidden,),
        "lm_head.weight": (head["draft_vocab_size"], hidden),
        "d2t": (head["draft_vocab_size"],),
        "t2d": (config["vocab_size"],),
    }


def _verify_map(vocab_size: int, tensors: Mapping[str, TensorHeader], target: Mapping[str, Any] | None) -> list[Defect]:
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None or t2d is None:
        return []  # reported as missing
    if d2t.dtype != "I64" or t2d.dtype != "BOOL":
        return [Defect(d2t.file.name, f"d2t is {d2t.dtype} and t2d {t2d.dtype}; servers read I64 and BOOL")]
    offsets = np.frombuffer(d2t.read(), "<i8")
    ids = np.arange(len(offsets)) + offsets
    problems = []
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        problems.append(
            Defect(
                d2t.file.name,
                f"d2t leads to ids {ids.min()} to {ids.max()}, outside the vocabulary "
                f"of {vocab_size}: it must hold offsets (target id - draft id)",
            )
        )
    elif (np.diff(ids) <= 0).any():
        problems.append(Defect(d2t.file.name, "d2t does not lead to ascending, distinct ids of the target"))
    else:
        marked = np.flatnonzero(np.frombuffer(t2d.read(), np.bool_))
        if not np.array_equal(marked, ids):
            problems.append(Defect(t2d.file.name, f"t2d marks {len(marked)} ids which are not the {len(ids)} of d2t"))
        problems += verify_ends(ids, d2t.file.name, target)
    return problems


def _verify_layer_ids(boundaries: Any, layers: Any, target: Mapping[str, Any] | None) -> list[Defect]:
    name = "eagle_aux_hidden_state_layer_ids"
    whole = isinstance(boundaries, list) and all(type(boundary) is int for boundary in boundaries)
    if not whole or len(boundaries) != 3:
        return [problem(f"{name} is {boundaries!r}, not three boundaries of the target")]
    if len(set(boundaries)) != 3:
        return [problem(f"{name} is {boundaries}: its ids must be distinct, servers read a set")]
    if target is not None and type(target.get("num_hidden_layers")) is int:
        layers = target["num_hidden_layers"]
    if min(boundaries) < 0 or (type(layers) is int and max(boundaries) > layers):
        return [problem(f"{name} is {boundaries}, outside the target's {layers} layers")]
    return []


class _Settings(SpeculatorSettings):
    num_layers: int | None = Field(None, ge=1, le=16, description="Decoder layers of the drafter. Left out: 1")

    COMMON: ClassVar[dict[str, Any]] = {**SpeculatorSettings.COMMON, "num_layers": 1, "adamw_rate_share": 0.1}
    PART_OF_THE_VOCABULARY: ClassVar[bool] = True


class Eagle3Settings(_Settings):
    """EAGLE-3 (arXiv 2503.01840)."""

    architecture: Literal["eagle3"] = Field("eagle3", description="Kind of drafter")


class Eagle31Settings(_Settings):
    """EAGLE-3.1: EAGLE-3 with its inputs and its output normalised."""

    architecture: Literal["eagle3.1"] = Field(description="Kind of drafter")


def _check_layers(target: Path, config: Config) -> None:
    """Refuses a target with too few layers for three boundaries."""
    default_layer_ids(config.get("num_hidden_layers") or 0)


def _model_class() -> type[DraftModel]:
    from model_ops.speculators.eagle3.network import Eagle3

    return Eagle3


def _is_eagle3(config: Config, newer: bool) -> bool:
    normalised = bool(config.get("fc_norm") or config.get("norm_output"))
    return config.get("architectures") == ["LlamaForCausalLMEagle3"] and normalised == newer


def _described(name: str, settings: type[SpeculatorSettings]) -> Architecture:
    return Architecture(
        name=name,
        settings=settings,
        model_class=_model_class,
        verify=verify_eagle3,
        recognises=lambda config: _is_eagle3(config, newer=issubclass(settings, Eagle31Settings)),
        speculators_layout=SpeculatorsLayout("eagle3", verify_eagle3_in_speculators_layout, speculators_name),
        check_target=_check_layers,
        vllm=VllmOptions("eagle3", SAMPLED_DRAFTS),
        sglang=SglangOptions("EAGLE3"),
    )


EAGLE3 = _described("eagle3", Eagle3Settings)
EAGLE3_1 = _described("eagle3.1", Eagle31Settings)
