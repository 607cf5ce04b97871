"""Where a model's answers end: the token ids that its directory names, and adding those that it was taught.

    eos_ids = end_of_text_ids(Path("models/quantized"))
    add_end_of_text(model, ids)
"""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedModel

from model_ops.errors import ModelError


def end_of_text_ids(directory: Path) -> frozenset[int]:
    """The token ids at which an answer ends: those of generation_config.json, else of config.json.

    Raises ModelError where neither names one: generation would never stop by itself.
    """
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.exists():
            found = json.loads(path.read_text()).get("eos_token_id")
            if found is not None:
                return frozenset(found if isinstance(found, list) else [found])
    raise ModelError(f"{directory} names no eos_token_id in generation_config.json or config.json; set it, or answers "
                     "never end")


def add_end_of_text(model: PreTrainedModel, ids: list[int]) -> None:
    """Generation also stops at the token the model was taught to end its answers with."""
    known = model.generation_config.eos_token_id
    known = known if isinstance(known, list) else [] if known is None else [known]
    model.generation_config.eos_token_id = list(dict.fromkeys([*ids, *known])) or None
