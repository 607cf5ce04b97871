"""Warm start from a previous drafter of the same target, when traffic has shifted.

    previous = read_previous(directory, target, settings)     # refused where it is of other weights
    counts = check_fit(model, previous)                       # model: new, warm-started from the target
    share = begin_between(model, previous, None, accepted)    # accepted(): what `model` makes of the new answers now

All weights begin between the new drafter's and the previous one's. A trained drafter's weights are several times as large as
a new one's, and an optimizer's steps are as large as ever, so it learns new traffic more slowly than a drafter that begins
anew; shrunk towards the beginning it keeps what it knows and learns as fast (Ash and Adams 2020, arXiv 1910.08475). How far
is measured: as far as it hardly costs anything of what the previous drafter makes of the new answers. Where these are what
it knows well, that is not at all; where it knows little of them, far.

Where the draft vocabulary differs, head rows of tokens that both know are taken over, and those of new tokens stay as they
began: the target's own rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from model_ops.errors import ModelError
from model_ops.models.model_directory import read_config
from model_ops.speculators.draft_model import DraftModel
from model_ops.speculators.factory import load_draft_model
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.target_stamp import WEIGHTS, mismatches

HEAD = re.compile(r"(^|\.)(lm_)?heads?(\.\d+)?\.weight$")
"""Names of the tensors with one row a token of the draft vocabulary."""
MAPS = ("d2t", "t2d", "token_map")
TARGETS = ("embed_tokens.weight",)
"""Never trained, so the new drafter has it from the target already; a row of the previous one's may be its mask's."""

SHARES = (0.25, 0.5, 0.75)
"""Of the way to the previous drafter, tried one after the other."""
KEPT = 0.9
"""Of the drafts that the previous drafter would have accepted, as many must be left."""


def read_previous(directory: Path, target: Path, settings: SpeculatorSettings) -> DraftModel:
    """The previous drafter. Raises ModelError, before any compute, where it cannot be continued for this target."""
    previous = load_draft_model(directory)
    config = json.loads((directory / "config.json").read_text())
    if previous.kind != settings.architecture:
        raise ModelError(f"continue_from: {directory} is a drafter of architecture {previous.kind}, the recipe asks for "
                         f"{settings.architecture}: set that one, or leave continue_from out")
    if config.get(WEIGHTS) is None:
        raise ModelError(f"continue_from: {directory / 'config.json'} names no {WEIGHTS}, so nobody can tell whose drafter it "
                         "is: leave continue_from out, and the new one will name it")
    wrong = mismatches(config, target)
    if wrong:
        raise ModelError(f"continue_from: {directory}: {wrong[0]}; leave continue_from out to train a new one")
    served = read_config(target)
    for name in ("hidden_size", "vocab_size"):
        own = getattr(previous.config, name, None)
        if own is not None and served.get(name) != own:
            raise ModelError(f"continue_from: {directory} has {name} {own}, the target {served.get(name)}: leave continue_from "
                             "out to train a new drafter")
    return previous


@torch.no_grad()
def begin_between(model: DraftModel, previous: DraftModel, share: float | None, accepted: Callable[[], float]) -> float:
    """Moves `model`, a new drafter, by `share` of the way to the previous one; open: by the smallest of SHARES that keeps KEPT
    of the accepted drafts, or the whole way. Returns the share.

    accepted: the acceptance length of `model` as it is at that moment, at least 1; called where share is open.
    """
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
    """Moves the weights of `model` by `share` of the way to the previous drafter's. Raises ModelError as check_fit does."""
    fit = _fit(model, previous)
    ours, theirs = model.state_dict(), previous.state_dict()
    for name in fit.names:
        if name in fit.heads:
            ours[name][fit.places] = _between(ours[name][fit.places], theirs[name][fit.sources], share)
        else:
            ours[name].copy_(_between(ours[name], theirs[name], share))


def check_fit(model: DraftModel, previous: DraftModel) -> dict[str, int]:
    """Counts of head rows that can be taken over and of new ones.

    Raises ModelError where a tensor's shape or a field that the weights were trained for says that the two are built
    differently.
    """
    places = _fit(model, previous).places
    return {"head_rows_taken_over": len(places), "head_rows_new": len(model.target_ids) - len(places)}


@dataclass(frozen=True)
class _Fit:
    """names: of all tensors that are taken over; heads: those of them of which rows `sources` go to rows `places`."""

    names: list[str]
    heads: set[str]
    places: list[int]
    sources: list[int]


def _fit(model: DraftModel, previous: DraftModel) -> _Fit:
    for name in model.trained_for:
        own, before = getattr(model.config, name), getattr(previous.config, name)
        if own != before:
            raise ModelError(f"continue_from: {name} is {before} in the previous drafter and {own} by these settings: give the "
                             "settings it was trained with, or leave continue_from out")
    ours, theirs = model.state_dict(), previous.state_dict()
    known = {int(token): row for row, token in enumerate(previous.target_ids.tolist())}
    tokens = model.target_ids.tolist()
    places = [row for row, token in enumerate(tokens) if token in known]
    names = [name for name in ours if name.rpartition(".")[2] not in MAPS and name not in TARGETS]
    heads = {name for name in names if name in theirs and _is_head(name, ours[name], theirs[name], model, previous)}
    for name in names:
        if name not in theirs or (ours[name].shape != theirs[name].shape and name not in heads):
            found = list(theirs[name].shape) if name in theirs else "not there"
            raise ModelError(f"continue_from: {name} is {found} in the previous drafter and {list(ours[name].shape)} by these "
                             "settings: give the settings it was trained with, or leave continue_from out")
    return _Fit(names, heads, places, [known[tokens[row]] for row in places])


def _between(own: Tensor, before: Tensor, share: float) -> Tensor:
    """Interpolation by `share`; integer tensors are taken from `before`."""
    before = before.to(own.device, own.dtype)
    return torch.lerp(own, before, share) if own.is_floating_point() else before


def _is_head(name: str, tensor: Tensor, source: Tensor, model: DraftModel, previous: DraftModel) -> bool:
    return (HEAD.search(name) is not None and tensor.shape[0] == len(model.target_ids)
            and source.shape[0] == len(previous.target_ids) and tensor.shape[1:] == source.shape[1:])
