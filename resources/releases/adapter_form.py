"""A release as a LoRA adapter on a base model: what it holds, how it is laid into the release, and how it is checked again.

The adapter lies in the release's own directory, so each release has its adapter at a path of its own: vLLM keeps cached
prefixes by the adapter's name and path. Beside PEFT's two files lie the target's tokenizer and chat template, which a server
is started with. What was measured is the target, in which adapter and base are merged."""

import json
import shutil
from pathlib import Path

from pydantic import BaseModel

from model_ops.adapters import CONFIG, WEIGHTS
from model_ops.files import template_files, write_json
from model_ops.serving import lora_flags
from resources.lake import LakeLayout
from resources.manifests import File, Manifest, ManifestError, describe_files, files_digest, read_manifest

FOLDER = "adapter"
"""Of the adapter, in the target's directory and in the release's."""
OF_THE_MODEL = (".safetensors", ".index.json", ".bin", ".gguf", ".jsonl", ".md", ".log")
MODEL_CONFIG = "config.json"
"""By which readers of a tokenizer's directory know the family of its model."""
NO_TOKENIZER = frozenset({MODEL_CONFIG, "generation_config.json", "manifest.json", "speed.json"})


class NoAdapterError(Exception):
    """A model that cannot be released as an adapter."""


class AdapterPart(BaseModel):
    """The adapter of a release. path: its directory in the lake. digest: of its files. tokenizer: digest of the files that a
    server reads tokenizer and chat template from: adapters with another one need a server of their own."""

    path: str
    rank: int
    digest: str
    tokenizer: str


def lay_adapter(output: Path, workload: str, target: Manifest, target_directory: Path, base: Manifest) -> AdapterPart:
    """Writes the adapter and the tokenizer into the release. Raises NoAdapterError for a target that has no adapter, or one
    that vLLM does not load."""
    source, place = target_directory / FOLDER, output / FOLDER
    name = f"{target.name}@{target.version}"
    try:
        config = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NoAdapterError(
            f"release.form is adapter, and {name} has no {FOLDER}/: set sft.method to lora or qlora and train "
            "it again, or set release.form to merged"
        ) from error
    if config.get("target_parameters"):
        raise NoAdapterError(
            f"the adapter of {name} changes experts that are stored as one weight, such as {config['target_parameters'][0]}, "
            "which servers were not tried with: take them out of sft.lora.targets, or set release.form to merged"
        )
    try:
        lora_flags.served_rank(config["r"])
    except ValueError as error:
        raise NoAdapterError(f"{name}: {error}, or set release.form to merged") from error
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / WEIGHTS, place / WEIGHTS)
    base_path = f"models/{base.name}/{base.version}"
    lake_from_here = "/".join([".."] * 4)  # releases/<workload>/<version>/adapter
    write_json(place / CONFIG, {**config, "base_model_name_or_path": f"{lake_from_here}/{base_path}"})
    for copied in (MODEL_CONFIG, *(file.path for file in tokenizer_files(target))):
        (place / copied).parent.mkdir(exist_ok=True)
        shutil.copyfile(target_directory / copied, place / copied)
    files = describe_files(place)
    path = f"releases/{workload}/{output.name}/{FOLDER}"
    return AdapterPart(path=path, rank=config["r"], digest=files_digest(files), tokenizer=_tokenizer_digest(files))


def adapter_base(lake: LakeLayout, target: Manifest) -> Manifest:
    """The model that a target's adapter was trained on. Raises ManifestError if it is not in the lake, NoAdapterError for a
    target that continues an earlier version: its adapter is one on that version, with the earlier adapter merged in."""
    models = [item for item in target.inputs if item.kind == "model"]
    if any(item.name == target.name for item in models):
        raise NoAdapterError(
            f"release.form is adapter, and {target.name}@{target.version} continues an earlier version, so its adapter is not "
            "one on the base model: train it from the base model (leave sft.continue_from out), or set release.form to merged"
        )
    for item in models:
        if item.name.rpartition("/")[2] != target.name.rpartition("/")[2]:
            return read_manifest(lake.artefacts("model") / item.name / item.version)
    raise ManifestError(
        f"{target.name}@{target.version} was made from no model of the lake, so it is no adapter's base and "
        "release.form cannot be adapter: set it to merged"
    )


def adapter_problems(directory: Path, adapter: AdapterPart, target: Manifest, base_digest: str) -> list[str]:
    """Whether a release's adapter is the one that was trained and measured, on the base that the release names. directory: of
    the release. target: the manifest of the measured model, which has the adapter's digests."""
    files = describe_files(directory / FOLDER) if (directory / FOLDER).is_dir() else []
    if files_digest(files) != adapter.digest or _tokenizer_digest(files) != adapter.tokenizer:
        return [f"{directory / FOLDER}: its files are not those that release.json names: restore it from a copy"]
    trained = next((file.sha256 for file in target.files if file.path == f"{FOLDER}/{WEIGHTS}"), None)
    here = next((file.sha256 for file in files if file.path == WEIGHTS), None)
    problems = []
    if here != trained:
        problems.append(
            f"{directory / FOLDER}: its adapter is not that of {target.name}@{target.version}, which was measured: "
            "materialize release_candidate again"
        )
    if base_digest not in {item.digest for item in target.inputs if item.kind == "model"}:
        problems.append(
            f"{directory}: {target.name}@{target.version} was trained on another base than the release names: "
            "materialize release_candidate again"
        )
    return problems


def tokenizer_files(model: Manifest) -> list[File]:
    """Files in a model's directory that are neither weights nor a config nor records: its tokenizer and chat template."""
    own = [file for file in model.files if file.path not in NO_TOKENIZER and not file.path.endswith(OF_THE_MODEL)]
    return [file for file in own if "/" not in file.path.removeprefix(f"{template_files.FOLDER}/")]


def _tokenizer_digest(files: list[File]) -> str:
    return files_digest(file for file in files if file.path not in (CONFIG, WEIGHTS, MODEL_CONFIG))
