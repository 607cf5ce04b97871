"""Hidden states in the offline formats of other trainers of EAGLE-3, and their trained heads as modules of ours.

    write_for_speculators(rows, states, folder)        # folder/hidden_states/hs_0.safetensors, ...
    write_for_specforge(rows, states, folder)          # folder/00000000.ckpt, ...
    model = read_speculators_head(checkpoint)          # for the exact decoder; safetensors alone are read
    model = read_specforge_head(directory)

`states` hold, for every token of a row, the three boundaries that the drafter reads, the last block's output and the same
after the final norm (capture (2, 5, 7, n, FINAL)): speculators norms the last output itself, specforge is given it normed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model_ops.speculators.backbone.draft_layers import DraftLayer, Norm
from model_ops.speculators.decoder_config import FUSED_STATES, Eagle3Config
from model_ops.speculators.eagle3.network import Eagle3
from model_ops.speculators.states.hidden_states import AnswerRow, HiddenStates

IN_A_STATE = FUSED_STATES + 2
"""The states of a token: what the drafter reads, the last block's output, and that after the final norm."""


def write_rows(rows: Sequence[AnswerRow], path: Path) -> None:
    """Tokens of every row and where its answer begins, for a peer that is to make a dataset of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps({"row_id": row.row_id, "ids": row.ids, "prompt_tokens": row.prompt_tokens}) + "\n" for row in rows)
    )


def write_for_speculators(rows: Sequence[AnswerRow], states: HiddenStates, folder: Path) -> None:
    """A file a row: token_ids [tokens], hidden_states [tokens, 4, hidden], the last of them before the final norm."""
    (folder / "hidden_states").mkdir(parents=True, exist_ok=True)
    for place, row in enumerate(rows):
        of_row = states.row(place)[0].unflatten(-1, (IN_A_STATE, -1))
        save_file(
            {"token_ids": torch.tensor(row.ids), "hidden_states": of_row[:, : FUSED_STATES + 1].contiguous()},
            folder / "hidden_states" / f"hs_{place}.safetensors",
        )


def write_for_specforge(rows: Sequence[AnswerRow], states: HiddenStates, folder: Path) -> None:
    """A file a row: input_ids and loss_mask [tokens], aux_hidden_state [1, tokens, 3 * hidden], hidden_state after the
    final norm [1, tokens, hidden]."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, row in enumerate(rows):
        of_row = states.row(place)[0].unflatten(-1, (IN_A_STATE, -1))
        torch.save(
            {
                "input_ids": torch.tensor(row.ids),
                "loss_mask": (torch.arange(len(row.ids)) >= row.prompt_tokens).long(),
                "aux_hidden_state": of_row[None, :, :FUSED_STATES].flatten(2).contiguous(),
                "hidden_state": of_row[None, :, -1].contiguous(),
            },
            folder / f"{place:08d}.ckpt",
        )


class NormedLayer(DraftLayer):
    """The first layer with its residual normalised, as speculators trains it by default."""

    def finish(
        self, residual: Float[Tensor, "*tokens hidden"], attended: Float[Tensor, "*tokens heads*head_dim"]
    ) -> Float[Tensor, "*tokens hidden"]:
        return super().finish(self.hidden_norm(residual), attended)


class NormedEagle3(Eagle3):
    """Eagle3 with the two norms that speculators trains by default: of the states before they are fused, of the residual."""

    def __init__(self, config: Eagle3Config, norm_before_fc: bool, norm_before_residual: bool):
        super().__init__(config)
        self.input_norm = Norm(FUSED_STATES * config.hidden_size, config.rms_norm_eps) if norm_before_fc else nn.Identity()
        if norm_before_residual:
            self.midlayer = NormedLayer(config, first=True)

    def fuse(self, captured: Float[Tensor, "*tokens captured*hidden"]) -> Float[Tensor, "*tokens hidden"]:
        return super().fuse(self.input_norm(captured))


def read_speculators_head(checkpoint: Path, target: Any) -> NormedEagle3:
    """The head of a checkpoint directory of speculators' trainer; `target` is the Hugging Face config of its target.

    A head without d2t drafts the whole vocabulary. Raises KeyError where a tensor or a flag is missing: nothing is guessed.
    """
    raw = json.loads((checkpoint / "config.json").read_text())
    weights = load_file(checkpoint / "model.safetensors")
    config = Eagle3Config.for_target(
        target,
        raw["draft_vocab_size"],
        fc_norm=raw["fc_norm"],
        norm_output=raw["norm_output"],
        num_layers=raw["transformer_layer_config"]["num_hidden_layers"],
    )
    config = config.model_copy(update={"layer_ids": tuple(raw["eagle_aux_hidden_state_layer_ids"])})
    model = NormedEagle3(config, raw["norm_before_fc"], raw["norm_before_residual"])
    renamed = {name.replace("layers.0.", "midlayer.", 1): tensor for name, tensor in weights.items()}
    return _filled(model, renamed, config)


def read_specforge_head(directory: Path, target: Any, layer_ids: tuple[int, int, int]) -> Eagle3:
    """The head that `specforge export --to hf` wrote: the midlayer form, without the boundaries that it was trained on."""
    raw = json.loads((directory / "config.json").read_text())
    config = Eagle3Config.for_target(target, raw["draft_vocab_size"], fc_norm=bool(raw.get("fc_norm")))
    config = config.model_copy(update={"layer_ids": layer_ids})
    return _filled(Eagle3(config), load_file(directory / "model.safetensors"), config)


def _filled(model: Eagle3, weights: dict[str, Tensor], config: Eagle3Config) -> Eagle3:
    if "d2t" not in weights and config.draft_vocab_size == config.vocab_size:
        weights = {
            **weights,
            "d2t": torch.zeros(config.vocab_size, dtype=torch.int64),
            "t2d": torch.ones(config.vocab_size, dtype=torch.bool),
        }
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model.float().eval().requires_grad_(False)
