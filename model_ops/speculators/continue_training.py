"""A drafter that goes on from a previous one of the same target, when traffic has shifted.

    previous = read_previous(directory, target, settings)     # refused where it is of other weights
    counts = take_over(model, previous)                       # model: new, warm-started from the target

All weights are the previous drafter's. Where the draft vocabulary differs, head rows of tokens that both know are taken
over, and those of new tokens stay as they began: the target's own rows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from torch import Tensor

from model_ops.errors import ModelError
from model_ops.models.model_directory import read_config
from model_ops.specs import SpeculatorSettings
from model_ops.speculators.draft_model import DraftModel, load_draft_model
from model_ops.speculators.target_stamp import WEIGHTS, mismatches

HEAD = re.compile(r"(^|\.)(lm_)?heads?(\.\d+)?\.weight$")
"""Names of the tensors with one row a token of the draft vocabulary."""
MAPS = ("d2t", "t2d", "token_map")
TARGETS = ("embed_tokens.weight",)
"""Never trained, so the new drafter has it from the target already; a row of the previous one's may be its mask's."""


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
def take_over(model: DraftModel, previous: DraftModel) -> dict[str, int]:
    """Copies the previous drafter's weights into `model`; counts of head rows taken over and of new ones.

    Raises ModelError, and changes nothing, where a tensor's shape or a field that the weights were trained for says that the
    two are built differently.
    """
    for name in model.trained_for:
        own, before = getattr(model.config, name), getattr(previous.config, name)
        if own != before:
            raise ModelError(f"continue_from: {name} is {before} in the previous drafter and {own} by these settings: give the "
                             "settings it was trained with, or leave continue_from out")
    ours, theirs = model.state_dict(), previous.state_dict()
    known = {int(token): row for row, token in enumerate(previous.target_ids.tolist())}
    tokens = model.target_ids.tolist()
    places = [row for row, token in enumerate(tokens) if token in known]
    sources = [known[tokens[row]] for row in places]
    names = [name for name in ours if name.rpartition(".")[2] not in MAPS and name not in TARGETS]
    heads = {name for name in names if name in theirs and _is_head(name, ours[name], theirs[name], model, previous)}
    for name in names:
        if name not in theirs or (ours[name].shape != theirs[name].shape and name not in heads):
            found = list(theirs[name].shape) if name in theirs else "not there"
            raise ModelError(f"continue_from: {name} is {found} in the previous drafter and {list(ours[name].shape)} by these "
                             "settings: give the settings it was trained with, or leave continue_from out")
    for name in names:
        if name in heads:
            ours[name][places] = theirs[name][sources].to(ours[name].device, ours[name].dtype)
        else:
            ours[name].copy_(theirs[name])
    return {"head_rows_taken_over": len(places), "head_rows_new": len(tokens) - len(places)}


def _is_head(name: str, tensor: Tensor, source: Tensor, model: DraftModel, previous: DraftModel) -> bool:
    return (HEAD.search(name) is not None and tensor.shape[0] == len(model.target_ids)
            and source.shape[0] == len(previous.target_ids) and tensor.shape[1:] == source.shape[1:])
