"""What a name given to `millrace chat` means: a release, a model of the lake, an alias, a directory, a Hugging Face id."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from model_ops.drafting import LOOKUPS, NO_DRAFTING, Drafting
from model_ops.jobs import Misuse
from resources.artefacts import behind
from resources.catalog import CatalogError, find_artefact
from resources.endpoints import Endpoint, workloads_with_endpoints
from resources.lake import LakeLayout
from resources.manifests import ManifestError, read_manifest
from resources.releases import ReleaseError, UnknownReleaseError, find_release, read_release

ROWS_READ = 2_000


class ChatError(Misuse):
    """Nothing can be talked to under a name; the message says what there is."""


@dataclass(frozen=True)
class Speaker:
    """Who answers."""

    name: str
    """Name for people."""
    model: Path
    drafting: Drafting = NO_DRAFTING
    drafter: Path | None = None
    workload: str = ""
    release: str = ""
    digest: str = ""
    """`release`, `digest`: as logs name them."""
    system: str = ""
    """The prompt that most of its training rows begin with."""
    share: float = 0.0
    """Share of the training rows that begin with it."""

    @property
    def words(self) -> list[str]:
        """Of the process that answers (model_ops/serving/talk.py)."""
        drafter = [str(self.drafter)] if self.drafter is not None else []
        return [str(self.model), self.drafting.method, str(self.drafting.num_speculative_tokens), *drafter]


def find_speaker(lake: LakeLayout | None, text: str) -> Speaker:
    """Raises ChatError for a name that nothing has."""
    directory = Path(text).expanduser()
    if (directory / "config.json").is_file():
        return _of_model(lake, directory.resolve(), text)
    if lake is not None and (speaker := _in_lake(lake, text)) is not None:
        return speaker
    if (cached := _cached(text)) is not None:
        return Speaker(text, cached)
    there = (
        f"alias ({', '.join('/'.join(each) for each in _aliases(lake)) or 'none yet'}), release or model of {lake.place}"
        if lake
        else "directory of a model (for what a lake has, name it with --lake)"
    )
    raise ChatError(f"{text!r} is no {there}, and no Hugging Face id in the cache")


def _in_lake(lake: LakeLayout, text: str) -> Speaker | None:
    aliases = _aliases(lake)
    meant = [(text, alias) for alias in ("champion", "candidate") if (text, alias) in aliases][:1] or [
        each for each in aliases if text in (each[1], "/".join(each))
    ]
    if len(meant) > 1:
        raise ChatError(f"{text!r} is an alias of several workloads: name one of {', '.join('/'.join(each) for each in meant)}")
    for workload, alias in meant:
        return _of_release(lake, lake.artefacts("release") / workload / aliases[workload, alias], f"{alias} ")
    with suppress(UnknownReleaseError):
        return _of_release(lake, find_release(lake, text).directory)
    with suppress(CatalogError):
        directory = lake.root / find_artefact(lake, text)
        if lake.artefacts("model") not in directory.parents:
            raise ChatError(f"{text!r} is no model: name a model or a release")
        return _of_model(lake, directory, text)
    return None


def _aliases(lake: LakeLayout) -> dict[tuple[str, str], str]:
    """The version of each workload's aliases."""
    return {
        (workload, alias): version
        for workload in workloads_with_endpoints(lake)
        for alias, version in Endpoint(lake, workload).read().all().items()
    }


def _of_release(lake: LakeLayout, directory: Path, alias: str = "") -> Speaker:
    try:
        release = read_release(directory)
    except ReleaseError as error:
        raise ChatError(str(error)) from error
    drafting, drafter = release.served_drafting, None
    if drafting.method == "drafter" and release.speculator is not None:
        drafter = lake.root / release.speculator.path
    elif drafting.method not in LOOKUPS:
        drafting = NO_DRAFTING
    places = [lake.root / release.target.path, *([drafter] if drafter else [])]
    for place in places:
        lake.mirror.fetch(place)
    system, share = _system_prompt(lake, places[0])
    return Speaker(
        f"{alias}{directory.name} of {release.workload}",
        places[0],
        drafting,
        drafter,
        release.workload,
        directory.name,
        release.target.digest,
        system,
        share,
    )


def _of_model(lake: LakeLayout | None, directory: Path, text: str) -> Speaker:
    if lake is None or lake.artefacts("model") not in directory.parents:
        return Speaker(text, directory)
    lake.mirror.fetch(directory)
    try:
        manifest = read_manifest(directory)
    except ManifestError as error:
        raise ChatError(str(error)) from error
    system, share = _system_prompt(lake, directory)
    return Speaker(
        f"{manifest.name}@{manifest.version}",
        directory,
        workload=manifest.name.partition("/")[0],
        digest=manifest.digest,
        system=system,
        share=share,
    )


def _system_prompt(lake: LakeLayout, model: Path) -> tuple[str, float]:
    """The system message that most rows begin with, of those that the model learnt, and their share; "" for none."""
    try:
        learnt = next((item for item, _ in behind(lake, [read_manifest(model)]) if item.name.endswith("/sft_dataset")), None)
    except ManifestError:
        return "", 0.0
    home = lake.artefacts("dataset") / learnt.name / str(learnt.version) if learnt else None
    if home is None or not (path := home / "train.parquet").exists():
        return "", 0.0
    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(ROWS_READ, columns=["messages"]), None)
    said = Counter(_system(json.loads(messages)) for messages in (batch["messages"].to_pylist() if batch else []) if messages)
    system, count = said.most_common(1)[0] if said else ("", 0)
    return (system, count / said.total()) if system else ("", 0.0)


def _system(messages: Sequence[dict]) -> str:
    first = messages[0] if messages else {}
    content = first.get("content") if first.get("role") in ("system", "developer") else ""
    return content if isinstance(content, str) else ""


def _cached(name: str) -> Path | None:
    """The files of a Hugging Face id in the local cache; None without them. Nothing is downloaded."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError):
        return None
