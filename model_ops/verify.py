"""Check a model, drafter or release directory without loading it: no torch, no network, nothing executed.

    problems = verify(Path("lake/models/tutor/3f2a.../"))                   # [] where nothing is wrong
    problems = verify(Path("speculator"), target=Path("quantized"))         # a drafter against its target

Files against the digests of manifest.json, safetensors headers against the files' bytes, config.json against tensors,
tokenizer, chat template and ends of text present and within the vocabulary; for drafters the traps that cost
acceptance without any error (`model_ops.speculators.verify_drafter`). Each problem is one sentence.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from model_ops.models.verify_model import Problem, verify_files_to_serve, verify_weights
from model_ops.speculators.target_stamp import mismatches
from model_ops.speculators.verify_drafter import check_of, is_twin, verify_draft_model, verify_twin
from model_ops.tensor_files import TensorFileError, read_directory

SCRATCH = ".work"


def verify(directory: Path, target: Path | None = None) -> list[Problem]:
    """Everything that is wrong with a directory; [] where nothing is. `target` is what a drafter drafts for."""
    if not directory.is_dir():
        return [Problem(str(directory), f"{directory} is not a directory")]
    manifest, problems = read_json(directory, "manifest.json")
    if manifest is not None:
        problems += verify_manifest(directory, manifest)
    if (directory / "config.json").exists():
        return problems + _verify_weights_of(directory, target)
    members = sorted(path.parent for path in directory.glob("*/config.json"))
    if not members and manifest is None and not problems:
        return [Problem("config.json", f"{directory} holds neither config.json nor manifest.json: it is no model, "
                                       "drafter or release")]
    if isinstance(manifest, dict) and manifest.get("kind") == "model":
        problems.append(Problem("config.json", "config.json is missing from a model: save the model again"))
    for member in members:  # a release may carry its target and drafter
        problems += [Problem(f"{member.name}/{problem.file}", problem.sentence) for problem in verify(member, target)]
    return problems


def verify_manifest(directory: Path, manifest: Any) -> list[Problem]:
    """Each file a manifest lists exists with its size and digest, and no other file lies beside them."""
    try:
        listed = {str(entry["path"]): (int(entry["bytes"]), str(entry["sha256"])) for entry in manifest["files"]}
    except (KeyError, TypeError, ValueError):
        return [Problem("manifest.json", "manifest.json has no readable list of files {path, bytes, sha256}")]
    problems = []
    for name, (size, digest) in listed.items():
        path = directory / name
        if not path.resolve().is_relative_to(directory.resolve()):
            problems.append(Problem(name, f"manifest.json lists {name}, which lies outside the directory"))
        elif not path.is_file():
            problems.append(Problem(name, f"{name} is listed in manifest.json and missing"))
        elif path.stat().st_size != size:
            problems.append(Problem(name, f"{name} has {path.stat().st_size} bytes, manifest.json says {size}"))
        else:
            with path.open("rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
            if found != digest:
                problems.append(Problem(name, f"{name} has sha256 {found[:12]}, manifest.json says {digest[:12]}"))
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if path.is_file() and relative.parts[0] != SCRATCH and relative.as_posix() not in {*listed, "manifest.json"}:
            problems.append(Problem(relative.as_posix(), f"{relative.as_posix()} is not listed in manifest.json"))
    return problems


def read_json(directory: Path, name: str) -> tuple[Any, list[Problem]]:
    """(content, []) of a JSON file, (None, []) where there is none, (None, [problem]) where it is not JSON."""
    try:
        return json.loads((directory / name).read_text()), []
    except FileNotFoundError:
        return None, []
    except ValueError:
        return None, [Problem(name, f"{name} is not JSON")]


def _verify_weights_of(directory: Path, target: Path | None) -> list[Problem]:
    config, problems = read_json(directory, "config.json")
    if not isinstance(config, dict):
        return problems or [Problem("config.json", "config.json is not a JSON object")]
    try:
        tensors = read_directory(directory)
    except TensorFileError as error:
        return [Problem("model.safetensors", str(error))]
    target_config = None
    if target is not None:
        target_config, unreadable = read_json(target, "config.json")
        problems += unreadable
        generation, _ = read_json(target, "generation_config.json")
        if isinstance(target_config, dict) and isinstance(generation, dict) and generation.get("eos_token_id") is not None:
            target_config = {**target_config, "eos_token_id": generation["eos_token_id"]}  # where answers end
    if is_twin(config):
        return problems + verify_twin(config, tensors, target_config) + _verify_belonging(config, target)
    check = check_of(config)
    if check is None:
        problems += verify_weights(config, tensors) + verify_files_to_serve(directory, config)
        return problems + verify_draft_model(config, target_config) + _verify_belonging(config, target)
    problems += check(config, tensors, target_config) + _verify_belonging(config, target)
    twin = directory / "speculators"
    if twin.is_dir():
        twin_problems = _verify_weights_of(twin, target)
        problems += [Problem(f"speculators/{problem.file}", problem.sentence) for problem in twin_problems]
        if not twin_problems:
            twins = read_directory(twin)
            for name, tensor in tensors.items():
                other = twins.get(name.replace("midlayer.", "layers.0.", 1))
                if other is None or other.read() != tensor.read():
                    problems.append(Problem("speculators/model.safetensors",
                                            f"{name} differs between the two layouts: save the drafter again"))
    return problems


def _verify_belonging(config: dict[str, Any], target: Path | None) -> list[Problem]:
    """Whether a drafter was trained for the very weights that it is checked against."""
    return [] if target is None else [Problem("config.json", sentence) for sentence in mismatches(config, target)]
