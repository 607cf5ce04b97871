"""What a name given to `millrace chat` means: a release, a model of the lake, an alias, a directory, a Hugging Face id.

    found = find_speaker(lake, "code-assistant")          # the champion, else the candidate; also "candidate", "3f2a91",
    found.model, found.drafting, found.system             # "code-assistant/sft_model", "./model", "org/model" (in the cache)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from model_ops.errors import Misuse
from model_ops.serving.drafting import LOOKUPS, NO_DRAFTING, Drafting
from resources.artefacts.ancestry import behind
from resources.artefacts.manifest import ManifestError, read_manifest
from resources.catalog.catalog import CatalogError, find_artefact
from resources.lake import Lake
from resources.releasing.endpoints import Endpoint, workloads_with_endpoints
from resources.releasing.release import ReleaseError, read_release
from resources.releasing.release_names import UnknownReleaseError, find_release

ROWS_READ = 2_000


class ChatError(Misuse):
    """Nothing can be talked to under a name; the message says what there is."""


@dataclass(frozen=True)
class Speaker:
    """Who answers. name: for people. release, digest: as logs name them. system: the prompt that most of its training rows
    begin with; share: of how many."""

    name: str
    model: Path
    drafting: Drafting = NO_DRAFTING
    drafter: Path | None = None
    workload: str = ""
    release: str = ""
    digest: str = ""
    system: str = ""
    share: float = 0.0

    @property
    def words(self) -> list[str]:
        """Of the process that answers (model_ops/answering/talk.py)."""
        drafter = [str(self.drafter)] if self.drafter is not None else []
        return [str(self.model), self.drafting.method, str(self.drafting.num_speculative_tokens), *drafter]


def find_speaker(lake: Lake | None, text: str) -> Speaker:
    """Raises ChatError for a name that nothing has."""
    directory = Path(text).expanduser()
    if (directory / "config.json").is_file():
        return _of_model(lake, directory.resolve(), text)
    if lake is None:
        if (found := _cached(text)) is not None:
            return Speaker(text, found)
        raise ChatError(f"{text!r} is no directory of a model and no Hugging Face id in the cache; releases, models and "
                        "aliases are those of a lake: name it with --lake")
    if (named := _of_alias(lake, text)) is not None:
        return named
    try:
        return _of_release(lake, find_release(lake, text).directory)
    except UnknownReleaseError as error:
        unknown = error
    try:
        found = lake.root / find_artefact(lake, text)
        if (found / "config.json").is_file() or lake.artefacts("model") in found.parents:
            return _of_model(lake, found, text)
        raise ChatError(f"{text!r} is a {found.relative_to(lake.root).parts[0].removesuffix('s')}: name a model or a release")
    except CatalogError:
        if (cached := _cached(text)) is not None:
            return Speaker(text, cached)
    aliases = [f"{workload}/{alias}" for workload in workloads_with_endpoints(lake)
               for alias in Endpoint(lake, workload).read().all()]
    raise ChatError(f"{text!r} is no alias ({', '.join(aliases) or 'none yet'}), no release and no model of {lake.place}, and "
                    "no Hugging Face id in the cache") from unknown


def _of_alias(lake: Lake, text: str) -> Speaker | None:
    """The release of WORKLOAD (its champion, else its candidate), WORKLOAD/ALIAS, or an alias that one workload has."""
    found = {}
    for workload in workloads_with_endpoints(lake):
        aliases = Endpoint(lake, workload).read().all()
        plain = aliases.get("champion") or aliases.get("candidate")
        found |= {(workload, alias): version for alias, version in aliases.items() if text in (alias, f"{workload}/{alias}")}
        if text == workload and plain is not None:
            found = {(workload, "champion" if "champion" in aliases else "candidate"): plain}
            break
    if len(found) > 1:
        raise ChatError(f"{text!r} is an alias of several workloads: name one of "
                        f"{', '.join(f'{workload}/{alias}' for workload, alias in found)}")
    for (workload, alias), version in found.items():
        return _of_release(lake, lake.artefacts("release") / workload / version, f"{alias} ")
    return None


def _of_release(lake: Lake, directory: Path, alias: str = "") -> Speaker:
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
    return Speaker(f"{alias}{directory.name} of {release.workload}", places[0], drafting, drafter, release.workload,
                   directory.name, release.target.digest, system, share)


def _of_model(lake: Lake | None, directory: Path, text: str) -> Speaker:
    if lake is None or lake.artefacts("model") not in directory.parents:
        return Speaker(text, directory)
    lake.mirror.fetch(directory)
    try:
        manifest = read_manifest(directory)
    except ManifestError as error:
        raise ChatError(str(error)) from error
    system, share = _system_prompt(lake, directory)
    return Speaker(f"{manifest.name}@{manifest.version}", directory, workload=manifest.name.partition("/")[0],
                   digest=manifest.digest, system=system, share=share)


def _system_prompt(lake: Lake, model: Path) -> tuple[str, float]:
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
