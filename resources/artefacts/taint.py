"""Models and releases whose weights learnt rows that were erased since: a model by a dataset that lost rows (erased.json) or by
a tainted model, a release by its target and its drafter. tainted.json, beside the manifest, stays when the dataset is removed.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from model_ops.files import write_text
from resources.lake import LakeLayout
from resources.manifests import TAINTED, Input, Kind, Manifest, ManifestError, erased, erased_in, read_manifest

ACCOMPANYING = frozenset({"build_served_answers"})
"""Operations whose dataset goes with another one, which lost the same rows of its training split."""


class Cause(BaseModel):
    """A dataset that lost rows after weights learnt them."""

    model_config = ConfigDict(extra="forbid")

    dataset: str
    rows: int
    at: datetime
    erasures: list[str] = Field(default_factory=list)


class TaintRecord(BaseModel):
    """tainted.json."""

    model_config = ConfigDict(extra="forbid")

    causes: list[Cause]


@dataclass
class Taint:
    """A tainted model or release."""

    kind: str
    name: str
    version: str
    directory: Path
    causes: dict[str, Cause] = field(default_factory=dict)
    """Causes by the node of the dataset."""

    @property
    def node(self) -> str:
        return f"{self.kind}:{self.name}@{self.version}"

    @property
    def rows(self) -> int:
        """The most erased rows of one dataset: datasets that follow each other hold the same ones."""
        return max(cause.rows for cause in self.causes.values())

    @property
    def at(self) -> datetime:
        return max(cause.at for cause in self.causes.values())

    @property
    def sentence(self) -> str:
        rows = f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        return f"{self.name} {self.version} learnt {rows} that were erased since, last on {self.at:%Y-%m-%d}"


def find_taints(lake: LakeLayout, planned: Iterable[Cause] = ()) -> dict[str, Taint]:
    """All tainted models and releases of a lake, by lineage node. planned: rows that an erasure would take, as if it had."""
    wanted = list(planned)
    if not wanted and not any(
        any(lake.root.glob(f"{kind}/*/*/*/{name}")) for kind, name in (("datasets", erased.ERASED), ("models", TAINTED))
    ):
        return {}
    look = _Look(lake, {cause.dataset: cause for cause in wanted})
    for place in (*sorted(lake.root.glob("models/*/*/*/manifest.json")), *sorted(lake.root.glob("releases/*/*/manifest.json"))):
        with suppress(ManifestError):
            look.at(read_manifest(place.parent))
    return {node: taint for node, taint in look.taints.items() if taint is not None}


def rows_erased_from(lake: LakeLayout, manifests: Iterable[Manifest]) -> int:
    """The most rows that any of these models learnt and that were erased since."""
    look = _Look(lake, {})
    return max((taint.rows for manifest in manifests if (taint := look.at(manifest)) is not None), default=0)


def keep_taint(lake: LakeLayout) -> list[Taint]:
    taints = list(find_taints(lake).values())
    for taint in taints:
        causes = [taint.causes[node] for node in sorted(taint.causes)]
        text = TaintRecord(causes=causes).model_dump_json(indent=2) + "\n"
        path = taint.directory / TAINTED
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
    return taints


class _Look:
    """Follows what weights were made from; each artefact is looked at once."""

    def __init__(self, lake: LakeLayout, planned: dict[str, Cause]):
        self.lake, self.planned = lake, planned
        self.taints: dict[str, Taint | None] = {}

    def at(self, manifest: Manifest) -> Taint | None:
        directory = _directory(self.lake, manifest.kind, manifest.name, manifest.version)
        taint = Taint(manifest.kind, manifest.name, manifest.version, directory)
        if taint.node in self.taints:
            return self.taints[taint.node]
        self.taints[taint.node] = None  # two manifests that name each other: stop here
        for cause in _noted(directory):
            taint.causes[cause.dataset] = cause
        for item in manifest.inputs:
            if item.kind == "dataset" and manifest.kind == "model":
                taint.causes |= self._of_dataset(item)
            elif item.kind == "model" and not item.pinned:
                taint.causes |= self._of_model(item.name, item.version)
        if taint.causes:
            self.taints[taint.node] = taint
        return self.taints[taint.node]

    def _of_model(self, name: str, version: str) -> dict[str, Cause]:
        try:
            taint = self.at(read_manifest(_directory(self.lake, "model", name, version)))
        except ManifestError:
            return {}
        return taint.causes if taint else {}

    def _of_dataset(self, taken: Input) -> dict[str, Cause]:
        """The rows that a dataset lost after it was taken as an input, and the taint of the models that made its answers."""
        name, version = taken.name, taken.version
        directory, node = _directory(self.lake, "dataset", name, version), f"dataset:{name}@{version}"
        try:
            manifest = read_manifest(directory)
        except ManifestError:
            return {}
        causes: dict[str, Cause] = {}
        if manifest.op not in ACCOMPANYING:
            noted = erased_in(directory)
            if noted is not None and taken.digest != manifest.digest and (removals := noted.learnt_from(taken.digest)):
                causes[node] = Cause(
                    dataset=node,
                    rows=sum(each.rows for each in removals),
                    at=max(each.at for each in removals),
                    erasures=sorted({each.erasure for each in removals}),
                )
            if node in self.planned:
                rows = self.planned[node].rows + (causes[node].rows if node in causes else 0)
                causes[node] = self.planned[node].model_copy(update={"rows": rows})
        for item in manifest.inputs:
            if item.kind == "model" and not item.pinned:
                causes |= self._of_model(item.name, item.version)
        return causes


def _noted(directory: Path) -> list[Cause]:
    with suppress(OSError, ValueError):
        return TaintRecord.model_validate_json((directory / TAINTED).read_text(encoding="utf-8")).causes
    return []


def _directory(lake: LakeLayout, kind: str, name: str, version: str) -> Path:
    workload, _, rest = name.partition("/")
    home = lake.artefacts(kind) / workload
    return (home if kind == "release" else home / rest) / version


def home_of(lake: LakeLayout, kind: Kind, name: str) -> Path:
    return lake.artefacts(kind) / (name.split("/")[0] if kind == "release" else name)


def behind(lake: LakeLayout, manifests: Iterable[Manifest]) -> Iterator[tuple[Input, Manifest | None]]:
    """Every dataset, model and release that these were made from, directly or not, once each; not the given ones."""
    given = list(manifests)
    seen: set[tuple[str, str, str]] = {(manifest.kind, manifest.name, manifest.version) for manifest in given}
    waiting = [item for manifest in given for item in manifest.inputs]
    while waiting:
        item = waiting.pop()
        if item.kind == "table" or item.kind == "external" or (item.kind, item.name, item.version) in seen:
            continue
        seen.add((item.kind, item.name, item.version))
        try:
            manifest = read_manifest(home_of(lake, item.kind, item.name) / item.version)
        except ManifestError:
            yield item, None
            continue
        waiting += manifest.inputs
        yield item, manifest


def licences_of(manifests: Sequence[Manifest]) -> dict[str, str]:
    """The licence of each external input: of a model directory as its README.md states it, of seeds as the recipe does."""
    licences: dict[str, str] = {}
    for manifest in manifests:
        about = manifest.config.get("about")
        stated = about.get("licences") if isinstance(about, dict) else None
        licences |= {name: licence for name, licence in (stated or {}).items() if licence}
        for item in manifest.inputs:
            if item.kind == "external" and item.name not in licences:
                licence = front_matter(Path(item.name)).get("license")
                if isinstance(licence, str) and licence:
                    licences[item.name] = licence
    return licences


def front_matter(directory: Path) -> dict[str, Any]:
    """The YAML between the first two lines `---` of README.md; {} if there is none that can be read."""
    try:
        parts = (directory / "README.md").read_text(encoding="utf-8").split("---", 2)
        stated = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return stated if isinstance(stated, dict) else {}
