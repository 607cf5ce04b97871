"""Checks the lake's directory: write access, other runs, and free disk space for what the recipe makes."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from model_ops.files import try_lock
from pipelines.checks.finding import CheckFinding, ok, problem, warning
from pipelines.contract import Base, Recipe, look_at_base
from pipelines.planning import ModelSizes, model_sizes
from resources.inspecting import FirstLook
from resources.lake import LakeError, LakeLayout, Tables
from resources.launching import runs_in_progress
from resources.reading import refuse_other_key
from resources.stages import STAGES, Stage
from stores.mirror.location import url_at

GB = 1e9
WEIGHT_BYTES = 2
"""Bytes per parameter of a finished model: bfloat16."""
CHECKPOINT_BYTES = 12
"""Bytes per parameter of a checkpoint: float32 weights and two moments of AdamW."""
INT8_SHARE = 1.1
"""Bytes per parameter of a quantized model: int8, scales, and an unquantized embedding."""
GGUF_SHARE = 34 / 32
"""Bytes per parameter of a GGUF file: 32 weights in int8 and a float16 scale."""
TABLES_SHARE = 1.0
PACKED_GROWS = 5.0
"""Bytes of tables and datasets per byte of logs, and growth of compressed logs when they are decompressed."""


def check_lake(place: Path) -> list[CheckFinding]:
    """Checks write access and locks. Creates nothing; a lake that does not exist is checked by its parent folder."""
    if (url := url_at(place)) is not None:
        return _check_bucket(place, url)
    if not place.exists():
        parent = next(folder for folder in place.parents if folder.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            return [problem("lake", f"{place} cannot be created: {parent} is not writable", "give another --lake")]
        return [ok("lake", f"{place} will be created")]
    try:
        lake = LakeLayout.open(place, create=False) if (place / "lake.json").exists() or not place.is_dir() else None
    except LakeError as error:
        return [problem("lake", str(error).partition("; ")[0], "give another --lake")]
    if lake is None:
        if any(child.name != ".dagster" for child in place.iterdir()):
            return [problem("lake", f"{place} is not empty and is no lake", "give an empty directory, or a new one")]
        return [ok("lake", f"{place} will be made a lake")]
    folders = [lake.root, *(lake.root / name for name in ("tables", "datasets", "models", "releases", "endpoints"))]
    shut = [folder for folder in folders if folder.exists() and not os.access(folder, os.W_OK | os.X_OK)]
    if shut:
        return [problem("lake", f"{shut[0]} is not writable", "give the user that runs millrace access to it")]
    return [ok("lake", f"{place} is a lake of this version, and writable"), *_key(lake), *_at_work(lake)]


def _check_bucket(place: Path, url: str) -> list[CheckFinding]:
    try:
        lake = LakeLayout.open(place, create=False)
    except LakeError as error:
        if str(error).startswith("no lake at"):
            return [ok("lake", f"{url} will be made a lake")]
        return [problem("lake", str(error), "give another --lake, or mend what the sentence names")]
    return [ok("lake", f"{url} is a lake of this version; its mirror here is {place}"), *_key(lake), *_at_work(lake)]


def _key(lake: LakeLayout) -> list[CheckFinding]:
    try:
        refuse_other_key(Tables(lake))
    except LakeError as error:
        what, _, remedy = str(error).partition(": ")
        return [problem("user ids", what, remedy)]
    return []


def _at_work(lake: LakeLayout) -> list[CheckFinding]:
    findings = []
    for run in runs_in_progress(lake):
        if run.is_alive is False:
            findings.append(ok("lake", f"run {run.run_id[:8]} was killed; the next run continues its work"))
        else:
            since = f" since {run.started_at:%Y-%m-%d %H:%M} UTC" if run.started_at else ""
            said = f"run {run.run_id[:8]} ({run.job}) is running on it{since}"
            findings.append(warning("lake", said, "wait for its end: two runs on one lake wait for each other"))
    if holder := _ingesting(lake):
        findings.append(warning("lake", f"{holder} reads logs into it", "wait for its end"))
    return findings


def _ingesting(lake: LakeLayout) -> str:
    with suppress(OSError), (lake.root / ".ingesting").open() as file:  # no lock file: nothing was ever read into the lake
        if not try_lock(file, shared=True):
            return file.read().strip() or "another process"
    return ""


def check_disk(recipe: Recipe, place: Path, looks: dict[str, FirstLook]) -> list[CheckFinding]:
    """Checks free space for everything that the recipe makes; artefacts that exist already are counted too."""
    folder = next(each for each in (place, *place.parents) if each.is_dir())
    free = shutil.disk_usage(folder).free
    base = look_at_base(recipe.base_model)
    parts = bytes_needed(recipe, base, looks)
    needed = sum(parts.values())
    is_part = any(look.has_more for look in looks.values()) or (base.kind != "tiny" and not base.parameters)
    many = "more than " if is_part else ""
    said = ", ".join(f"{name} {_size(size)}" for name, size in parts.items() if size >= 0.01 * needed)
    message = f"{many}{_size(needed)} needed ({said}), {_size(free)} free"
    if base.kind == "hub" and not base.parameters:
        message += f"; without the weights of {base.name}, whose size is not known here"
    if free < needed:
        return [problem("disk", message, f"free {_size(needed - free)} or more, or give a --lake elsewhere")]
    if free < 1.5 * needed:
        return [warning("disk", message, "that leaves little: free some, or give a --lake elsewhere")]
    return [ok("disk", message)]


def logged_bytes(look: FirstLook) -> float:
    """Estimated bytes of a source's logs, decompressed."""
    return look.bytes * (PACKED_GROWS if look.first_uri.endswith((".gz", ".zst", ".zstd", ".parquet")) else 1)


def bytes_needed(recipe: Recipe, base: Base, looks: dict[str, FirstLook]) -> dict[str, int]:
    """Estimated bytes by stage, `interactions` for all tables and datasets, and of `checkpoints`, which are removed after each
    stage, so only the largest stage's count."""
    sizes = model_sizes(recipe, base)
    models = [each for each in STAGES if each.kind == "model" and each.name not in recipe.disabled]
    checkpoints = [
        settings.keep_checkpoints * _weights(each, sizes) * (1 if getattr(settings, "method", "full") == "full" else 0.05)
        for each in models
        if (settings := recipe.trained.get(each.section)) is not None
    ]
    parts = {
        "interactions": TABLES_SHARE * sum(map(logged_bytes, looks.values())),
        **{each.name: _bytes_of(each, recipe, base, sizes) for each in models},
        "checkpoints": CHECKPOINT_BYTES * max(checkpoints, default=0.0),
    }
    return {name: round(size) for name, size in parts.items()}


def _weights(stage: Stage, sizes: ModelSizes) -> float:
    return {"distill": sizes.student, "quantize": sizes.served, "speculator": sizes.drafter}.get(stage.operation, sizes.base)


def _bytes_of(stage: Stage, recipe: Recipe, base: Base, sizes: ModelSizes) -> float:
    weights = _weights(stage, sizes)
    if stage.operation == "quantize":
        return (INT8_SHARE + GGUF_SHARE * recipe.quantize.gguf) * weights
    if stage.role == "base" and base.weight_bytes:
        return base.weight_bytes
    return WEIGHT_BYTES * weights * (2 if stage.group == "drafter" else 1)  # a drafter lies in two layouts


def _size(size: float) -> str:
    return f"{size / GB:,.1f} GB" if size >= GB else f"{size / 1e6:,.0f} MB"
