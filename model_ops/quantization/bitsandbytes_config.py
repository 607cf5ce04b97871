"""Writes and reads what config.json says of weights in the format of bitsandbytes, as transformers' BitsAndBytesConfig has it.
Importing this module imports no torch.

    announce_bitsandbytes(scheme, directory, ["lm_head"])
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model_ops.errors import ModelError
from model_ops.quantization.scheme import Scheme

METHOD = "bitsandbytes"
DEFAULTS: dict[str, Any] = {
    "quant_method": METHOD, "load_in_4bit": False, "load_in_8bit": False, "bnb_4bit_quant_type": "fp4",
    "bnb_4bit_use_double_quant": False, "bnb_4bit_compute_dtype": "float32", "bnb_4bit_quant_storage": "uint8",
    "llm_int8_threshold": 6.0, "llm_int8_has_fp16_weight": False, "llm_int8_enable_fp32_cpu_offload": False,
    "llm_int8_skip_modules": None}
"""transformers' own values of the keys that a config leaves out."""


def announce_bitsandbytes(scheme: Scheme, directory: Path, skipped: Sequence[str]) -> None:
    """Adds `quantization_config` to the config.json in `directory`. skipped: modules whose Linear layers stay floats."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    found = {**DEFAULTS, **dict(scheme.bitsandbytes), "llm_int8_skip_modules": list(skipped)}
    if found["load_in_4bit"]:
        found["bnb_4bit_compute_dtype"] = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    found |= {f"_{key}": found[key] for key in ("load_in_4bit", "load_in_8bit")}
    path.write_text(json.dumps({**config, "quantization_config": found}, indent=2))


def described(found: Mapping[str, Any], schemes: Iterable[Scheme]) -> tuple[Scheme | None, tuple[str, ...]]:
    """The scheme that a quantization_config of bitsandbytes describes (None: an unknown one), and patterns of the layers that
    are not quantized. Raises ModelError if these are not a list of names."""
    skipped = found.get("llm_int8_skip_modules")
    skipped = ["lm_head"] if skipped is None else skipped
    if not isinstance(skipped, list) or not all(isinstance(each, str) for each in skipped):
        raise ModelError(f"quantization_config has llm_int8_skip_modules = {skipped!r}, not a list of names")
    keys = {**DEFAULTS, **found}
    known = next((scheme for scheme in schemes if scheme.bitsandbytes
                  and all(keys[key] == value for key, value in scheme.bitsandbytes)), None)
    return known, tuple(rf"re:(.*\.)?{re.escape(name)}(\.|$)" for name in skipped)


def bits(found: Mapping[str, Any]) -> int:
    """Bits of a weight that a quantization_config of bitsandbytes describes."""
    return 8 if found.get("load_in_8bit") else 4
