"""Warm start of a drafter from a previous one of the same target: an interpolation between a new drafter and the previous one,
since shrinking trained weights towards their initialisation restores the speed of learning (arXiv 1910.08475). The smallest
share that keeps KEPT of its accepted drafts on the new answers is taken. Rows of tokens that are new in the vocabulary come
from the target."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from model_ops.jobs import ModelError
from model_ops.models import read_config
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.factory import load_draft_model
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.verify_layers import WEIGHTS, mismatches

HEAD = "lm_head.weight"
"""End of the names of tensors with one row per token of the draft vocabulary."""
MAPS = ("d2t", "t2d")
TARGETS = ("embed_tokens.weight",)
"""Tensors that are never trained and stay the target's."""

SHARES = (0.25, 0.5, 0.75)
"""Shares of the previous drafter in the interpolation, tried in this order."""
KEPT = 0.9
"""Least share of the previous drafter's accepted drafts that the interpolation must keep."""


def read_previous(directory: Path, target: Path, settings: SpeculatorSettings) -> DraftModel:
    """Loads the previous drafter. Raises ModelError, before any compute, if it cannot be continued for this target."""
    previous = load_draft_model(directory)
    config = json.loads((directory / "config.json").read_text())
    if previous.kind != settings.architecture:
        raise ModelError(
            f"continue_from: {directory} has architecture {previous.kind}, but the recipe has "
            f"{settings.architecture}: set architecture to {previous.kind}, or leave continue_from out"
        )
    if config.get(WEIGHTS) is None:
        raise ModelError(
            f"continue_from: {directory / 'config.json'} has no {WEIGHTS}, so its target is unknown: leave continue_from out"
        )
    wrong = mismatches(config, target)
    if wrong:
        raise ModelError(f"continue_from: {directory}: {wrong[0]}; leave continue_from out to train a new one")
    served = read_config(target)
    for name in ("hidden_size", "vocab_size"):
        own = getattr(previous.config, name, None)
        if own is not None and served.get(name) != own:
            raise ModelError(
                f"continue_from: {directory} has {name} {own}, the target {served.get(name)}: leave continue_from "
                "out to train a new drafter"
            )
    return previous


@torch.no_grad()
def begin_between(model: DraftModel, previous: DraftModel, share: float | None, accepted: Callable[[], float]) -> float:
    """Interpolates `model`, a new drafter, with the previous one and returns the previous one's share. share None: the smallest
    of SHARES that keeps KEPT of the accepted drafts, or else 1. accepted: returns the current acceptance length of `model`, at
    least 1; called if share is None."""
    if share is not None:
        take_over(model, previous, share)
        return share
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    take_over(model, previous)
    enough = KEPT * (accepted() - 1)
    for share in SHARES:
        model.load_state_dict(fresh)
        take_over(model, previous, share)
        if accepted() - 1 >= enough:
            return share
    take_over(model, previous)
    return 1.0


@torch.no_grad()
def take_over(model: DraftModel, previous: DraftModel, share: float = 1.0) -> None:
    """Interpolates the weights of `model` with the previous drafter's. Raises ModelError as check_fit does."""
    fit = _fit(model, previous)
    ours, theirs = model.state_dict(), previous.state_dict()
    for name in fit.names:
        if name in fit.heads:
            ours[name][fit.places] = _between(ours[name][fit.places], theirs[name][fit.sources], share)
        else:
            ours[name].copy_(_between(ours[name], theirs[name], share))


def check_fit(model: DraftModel, previous: DraftModel) -> dict[str, int]:
    """Numbers of head rows that come from the previous drafter, and of new ones. Raises ModelError if a tensor's shape, or a
    config field that the weights depend on, differs between the two."""
    places = _fit(model, previous).places
    return {"head_rows_taken_over": len(places), "head_rows_new": len(model.target_ids) - len(places)}


@dataclass(frozen=True)
class _Fit:
    """Plan of the interpolation."""

    names: list[str]
    """Tensors to interpolate."""
    heads: set[str]
    """Matrices by name, with rows `sources` of the old one for rows `places` of the new one."""
    places: list[int]
    sources: list[int]


def _fit(model: DraftModel, previous: DraftModel) -> _Fit:
    for name in model.trained_for:
        own, before = getattr(model.config, name), getattr(previous.config, name)
        if own != before:
            raise ModelError(
                f"continue_from: {name} is {before} in the previous drafter and {own} in these settings: use the "
                "previous drafter's settings, or leave continue_from out"
            )
    ours, theirs = model.state_dict(), previous.state_dict()
    known = {int(token): row for row, token in enumerate(previous.target_ids.tolist())}
    tokens = model.target_ids.tolist()
    places = [row for row, token in enumerate(tokens) if token in known]
    names = [name for name in ours if name.rpartition(".")[2] not in MAPS and name not in TARGETS]
    heads = {name for name in names if name in theirs and _is_head(name, ours[name], theirs[name], model, previous)}
    for name in names:
        if name not in theirs or (ours[name].shape != theirs[name].shape and name not in heads):
            shape = list(theirs[name].shape) if name in theirs else "not there"
            raise ModelError(
                f"continue_from: {name} is {shape} in the previous drafter and {list(ours[name].shape)} with "
                "these settings: use the previous drafter's settings, or leave continue_from out"
            )
    return _Fit(names, heads, places, [known[tokens[row]] for row in places])


def _between(own: Tensor, before: Tensor, share: float) -> Tensor:
    """Interpolation by `share`; integer tensors are taken from `before`."""
    before = before.to(own.device, own.dtype)
    return torch.lerp(own, before, share) if own.is_floating_point() else before


def _is_head(name: str, tensor: Tensor, source: Tensor, model: DraftModel, previous: DraftModel) -> bool:
    return (
        name.endswith(HEAD)
        and tensor.shape[0] == len(model.target_ids)
        and source.shape[0] == len(previous.target_ids)
        and tensor.shape[1:] == source.shape[1:]
    )
