"""Checks a model, drafter or release directory without loading it: no torch, no network, no code of the directory is run.

    problems = verify(Path("lake/models/tutor/3f2a.../"))                   # [] if nothing is wrong
    problems = verify(Path("speculator"), target=Path("quantized"))         # a drafter against its target

Compares files with the digests in manifest.json, safetensors headers with the files' bytes, and config.json with the tensors.
Tokenizer, chat template and end-of-text ids must exist and lie within the vocabulary. Drafters are also checked for errors
that do not prevent loading but cost acceptance (`Architecture.verify`). Each problem is one sentence."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ops.files import TensorFileError, TensorHeader, read_directory
from model_ops.models import Defect, verify_model
from model_ops.speculators import (
    ARCHITECTURES,
    SPECULATORS_LAYOUT,
    architecture_of,
    is_in_speculators_layout,
    mismatches,
    verify_same_vocabulary,
)

SCRATCH = ".work"
BESIDE = {"manifest.json", "erased.json", "tainted.json", "elsewhere.json", "model.sig", "provenance.dsse.json"}
"""Files beside the listed ones: the manifest, and the records of erasures."""


def verify(directory: Path, target: Path | None = None) -> list[Defect]:
    """All problems of a directory; [] if there are none. target: the model that a drafter drafts for."""
    if not directory.is_dir():
        return [Defect(str(directory), f"{directory} is not a directory")]
    manifest, problems = read_json(directory, "manifest.json")
    if manifest is not None:
        problems += verify_manifest(directory, manifest)
    if (directory / "config.json").exists():
        return problems + _verify_weights_of(directory, target)
    members = sorted(path.parent for path in directory.glob("*/config.json"))
    if not members and manifest is None and not problems:
        return [
            Defect(
                "config.json", f"{directory} holds neither config.json nor manifest.json: it is no model, drafter or release"
            )
        ]
    if isinstance(manifest, dict) and manifest.get("kind") == "model":
        problems.append(Defect("config.json", "config.json is missing from a model: save the model again"))
    for member in members:  # a release may contain its target and drafter
        problems += [Defect(f"{member.name}/{problem.file}", problem.sentence) for problem in verify(member, target)]
    return problems


def verify_manifest(directory: Path, manifest: Any) -> list[Defect]:
    """Problems of the files: each file in the manifest must exist with its size and digest, and there must be no other."""
    try:
        listed = {str(entry["path"]): (int(entry["bytes"]), str(entry["sha256"])) for entry in manifest["files"]}
    except (KeyError, TypeError, ValueError):
        return [Defect("manifest.json", "manifest.json has no readable list of files {path, bytes, sha256}")]
    rewritten, problems = _rewritten(directory, manifest)
    for name, (size, digest) in listed.items():
        path, now = directory / name, rewritten.get(name)
        if now is not None and path.is_file() and path.stat().st_size == now[0]:
            size, digest = now  # rows of it were erased after the manifest was written
        if not path.resolve().is_relative_to(directory.resolve()):
            problems.append(Defect(name, f"manifest.json lists {name}, which lies outside the directory"))
        elif not path.is_file():
            problems.append(Defect(name, f"{name} is listed in manifest.json and missing"))
        elif path.stat().st_size != size:
            problems.append(Defect(name, f"{name} has {path.stat().st_size} bytes, manifest.json says {size}"))
        else:
            with path.open("rb") as content:
                actual = hashlib.file_digest(content, "sha256").hexdigest()
            if actual != digest:
                problems.append(Defect(name, f"{name} has sha256 {actual[:12]}, manifest.json says {digest[:12]}"))
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if path.is_file() and relative.parts[0] != SCRATCH and relative.as_posix() not in {*listed, *BESIDE}:
            problems.append(Defect(relative.as_posix(), f"{relative.as_posix()} is not listed in manifest.json"))
    return problems


def _rewritten(directory: Path, manifest: Mapping[str, Any]) -> tuple[dict[str, tuple[int, str]], list[Defect]]:
    """Size and digest of the files that an erasure rewrote. Weights never are: a record of that kind counts for nothing."""
    record, problems = read_json(directory, "erased.json")
    if record is None or manifest.get("kind") == "model":
        return {}, problems
    try:
        return {name: (int(file["bytes"]), str(file["sha256"])) for name, file in record["files"].items()}, problems
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}, [Defect("erased.json", "erased.json has no readable files {path, bytes, sha256}")]


def read_json(directory: Path, name: str) -> tuple[Any, list[Defect]]:
    """(content, []) of a JSON file; (None, []) if it does not exist; (None, [problem]) if it is not JSON."""
    try:
        return json.loads((directory / name).read_text()), []
    except FileNotFoundError:
        return None, []
    except ValueError:
        return None, [Defect(name, f"{name} is not JSON")]


def _verify_weights_of(directory: Path, target: Path | None) -> list[Defect]:
    config, problems = read_json(directory, "config.json")
    if not isinstance(config, dict):
        return problems or [Defect("config.json", "config.json is not a JSON object")]
    try:
        tensors = read_directory(directory)
    except TensorFileError as error:
        return [Defect("model.safetensors", str(error))]
    target_config = None
    if target is not None:
        target_config, unreadable = read_json(target, "config.json")
        problems += unreadable
        generation, _ = read_json(target, "generation_config.json")
        if isinstance(target_config, dict) and isinstance(generation, dict) and generation.get("eos_token_id") is not None:
            target_config = {**target_config, "eos_token_id": generation["eos_token_id"]}  # where answers end
    if is_in_speculators_layout(config):
        return problems + _verify_speculators_layout(config, tensors, target_config) + _verify_belonging(config, target)
    architecture = architecture_of(config)
    if architecture is None or architecture.is_language_model:
        problems += verify_model.verify_weights(config, tensors) + verify_model.verify_files_to_serve(directory, config)
    check = verify_same_vocabulary if architecture is None else architecture.verify  # any language model may draft
    problems += check(config, tensors, target_config) + _verify_belonging(config, target)
    second = directory / SPECULATORS_LAYOUT
    if architecture is not None and architecture.speculators_layout is not None and second.is_dir():
        defects = _verify_weights_of(second, target)
        problems += [Defect(f"{SPECULATORS_LAYOUT}/{problem.file}", problem.sentence) for problem in defects]
        if not defects:
            others = read_directory(second)
            for name, tensor in tensors.items():
                other = others.get(architecture.speculators_layout.renamed(name))
                if other is None or other.read() != tensor.read():
                    problems.append(
                        Defect(
                            f"{SPECULATORS_LAYOUT}/model.safetensors",
                            f"{name} differs between the two layouts: save the drafter again",
                        )
                    )
    return problems


def _verify_speculators_layout(
    config: dict[str, Any], tensors: Mapping[str, TensorHeader], target: Mapping[str, Any] | None
) -> list[Defect]:
    """A directory in the speculators layout, by the architecture that its speculators_model_type names."""
    layouts = {layout.model_type: layout for each in ARCHITECTURES.values() if (layout := each.speculators_layout)}
    kind, layer = config["speculators_model_type"], config.get("transformer_layer_config")
    if not isinstance(kind, str) or kind not in layouts:
        *names, last = layouts
        return [Defect("config.json", f"speculators_model_type {kind!r} is not {', '.join(names)} or {last}")]
    if not isinstance(layer, dict) or layer.get("model_type") not in ("llama", "qwen3"):
        return [Defect("config.json", "transformer_layer_config must be a llama or qwen3 config")]
    return layouts[kind].verify(config, tensors, target)


def _verify_belonging(config: dict[str, Any], target: Path | None) -> list[Defect]:
    """Whether a drafter was trained for the very weights that it is checked against."""
    return [] if target is None else [Defect("config.json", sentence) for sentence in mismatches(config, target)]
