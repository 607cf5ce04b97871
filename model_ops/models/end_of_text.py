"""Token ids at which a model's answers end (eos): reads them from its directory, and adds trained ones."""

import json
from pathlib import Path

from transformers import PreTrainedModel

from model_ops.jobs import ModelError


def end_of_text_ids(directory: Path) -> frozenset[int]:
    """eos token ids from generation_config.json, or else from config.json. Raises ModelError if neither names one, because
    generation would not stop by itself."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.exists():
            ids = json.loads(path.read_text()).get("eos_token_id")
            if ids is not None:
                return frozenset(ids if isinstance(ids, list) else [ids])
    raise ModelError(
        f"{directory} names no eos_token_id in generation_config.json or config.json; set it, or answers never end"
    )


def add_end_of_text(model: PreTrainedModel, ids: list[int]) -> None:
    """Makes generation also stop at these ids, with which the training data ends answers."""
    known = model.generation_config.eos_token_id
    known = known if isinstance(known, list) else [] if known is None else [known]
    model.generation_config.eos_token_id = list(dict.fromkeys([*ids, *known])) or None
