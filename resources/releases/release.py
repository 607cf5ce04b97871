"""A release: target and drafter by path and digest, gates, and serving scripts. In the form `adapter`, what is served is a LoRA
adapter in the release's own directory on a base model, and the target, in which both are merged, is what was measured.

`<lake>/releases/<workload>/<version>/` holds release.json (target, drafter, gates, by relative path and digest), drafting.json
(what is drafted with, and why), the files that serve it, the bill of materials, the provenance, the model card and the report.
Signatures over it lie beside its manifest."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from model_ops.drafting import NO_DRAFTING, Drafting, DraftingChoice, with_drafter
from model_ops.files import template_files, write_json
from model_ops.jobs import CheckFailed, Misuse, Settings
from model_ops.serving import Service, fingerprint, tool_words
from model_ops.speculators import DrafterServing
from resources.artefacts import rows_erased_from
from resources.lake import LakeLayout
from resources.manifests import Manifest, ManifestError, read_manifest
from resources.releases import closed_times
from resources.releases.adapter_form import AdapterPart, NoAdapterError, adapter_base, lay_adapter
from resources.releases.drafting_decision import write_choice
from resources.releases.gate_result import GateResult, gate_problem
from resources.releases.serving_scripts import ServingPlan, write_serving_files
from resources.releases.settings import DraftingSettings, Gates, ServingSettings, WatchSettings


class ReleaseError(CheckFailed):
    """A release cannot be approved or served."""


class ReleaseSettings(Settings):
    """How a release is approved."""

    enabled: bool = Field(
        True,
        description="false: no release is made and nothing is served; the models, the drafter and the evaluation report "
        "stay in the lake",
    )
    form: Literal["merged", "adapter"] = Field(
        "merged",
        description="merged: the release serves the whole model. adapter: it serves the LoRA adapter of sft on its "
        "base model, so that one server on that base answers for several workloads, and a new adapter needs no new server",
    )
    approval: Literal["person", "two_people", "automatic"] = Field(
        "person",
        description="person: `millrace approve` releases it. two_people: two different people have to approve. "
        "automatic: it is released when its gates hold, and none has too few items to tell",
    )
    closed: Annotated[list[str], AfterValidator(closed_times.checked)] = Field(
        default_factory=list,
        description="Times at which no release is approved, as cron schedules of minutes: "
        "`* 18-23 * * *` is every day from 18:00. A rollback is always possible",
    )
    timezone: Annotated[str, AfterValidator(closed_times.checked_zone)] = Field(
        "UTC", description="Time zone of `closed`, such as Europe/Amsterdam"
    )
    signed: bool = Field(False, description="true: only a release that a trusted key has signed is approved and served")
    gates: Gates = Field(default_factory=Gates, description="Bounds that a release must meet")
    drafting: DraftingSettings = Field(
        default_factory=DraftingSettings, description="What the release drafts with when it is served"
    )
    serve_on: str | None = Field(
        None,
        description="Server and device of the endpoint, such as vllm/h100, sglang/sm80, vllm/cpu. A quantize.scheme that "
        "they do not load is refused. Left out: any scheme is accepted",
    )
    serving: ServingSettings = Field(
        default_factory=ServingSettings, description="Images and resources of the release's serving files"
    )
    zero_retention: bool = Field(
        False,
        description="true: the serving files switch off everything that keeps text of requests and answers: logs of "
        "requests, caches of prefixes and of earlier answers, traces, core dumps",
    )
    watch: WatchSettings | None = Field(
        None,
        description="For how long a new champion is watched after its promotion, and what brings the one before it back. "
        "Left out: it is not watched",
    )

    def base_of(self, lake: LakeLayout, target: Manifest) -> Manifest | None:
        """The model that the target's adapter was trained on, for a release of form adapter; None for others. Raises what
        `adapter_base` raises."""
        return adapter_base(lake, target) if self.form == "adapter" else None


class ReleasePolicy(BaseModel):
    """What an approval needs; closed, timezone and signed are those of the recipe."""

    people: int = 1
    """How many different people have to approve."""
    closed: list[str] = Field(default_factory=list)
    timezone: str = "UTC"
    signed: bool = False

    @classmethod
    def of(cls, settings: ReleaseSettings) -> ReleasePolicy:
        people = 2 if settings.approval == "two_people" else 1
        return cls(people=people, **settings.model_dump(include={"closed", "timezone", "signed"}))

    def closed_now(self) -> str:
        """Why no approval is taken at this time; "" if it is."""
        schedule = closed_times.closed_by(self.closed, self.timezone, datetime.now(UTC))
        return f"release.closed of its recipe has {schedule!r} ({self.timezone})" if schedule else ""


class Part(BaseModel):
    """A model that the release serves: its path, relative to the lake, and the digest of its files."""

    path: str
    name: str
    version: str
    digest: str


class Release(BaseModel):
    """release.json."""

    workload: str
    target: Part
    speculator: Part | None
    num_speculative_tokens: int
    architecture: str = "eagle3"
    """Architecture of the drafter."""
    form: Literal["merged", "adapter"] = "merged"
    base: Part | None = None
    """The model that the adapter was trained on; only with form adapter."""
    adapter: AdapterPart | None = None
    drafting: Drafting | None = None
    """What it is served with; None: the drafter, if there is one."""
    worth: str = ""
    """Whether it is better than its base and than what is served (resources/releasing/worth.py)."""
    gates: list[GateResult]
    policy: ReleasePolicy = Field(default_factory=ReleasePolicy)
    service: Service = Field(default_factory=Service)
    """What its servers say in every answer and do not keep."""

    @model_validator(mode="after")
    def _an_adapter_has_a_base(self):
        if (self.form == "adapter") != (self.base is not None and self.adapter is not None):
            raise ValueError("form adapter has a base and an adapter, and form merged has neither")
        return self

    @property
    def served_drafting(self) -> Drafting:
        """What servers draft with."""
        return self.drafting or (with_drafter(self.num_speculative_tokens) if self.speculator else NO_DRAFTING)

    @property
    def parts(self) -> list[Part]:
        """Target, drafter, and the base of an adapter, if any."""
        return [part for part in (self.target, self.speculator, self.base) if part is not None]

    @property
    def served_parts(self) -> list[Part]:
        """The models whose weights a server loads: target and drafter, or the base of the release's adapter."""
        return [part for part in ((self.base,) if self.base else (self.target, self.speculator)) if part is not None]

    @property
    def passed(self) -> bool:
        return not any(map(gate_problem, self.gates))


class ReleaseRef(BaseModel):
    """A release as an entry of the endpoint's log names it."""

    model_config = ConfigDict(frozen=True)

    version: str
    digest: str = ""
    """The digest of its files."""
    gates: list[GateResult] = Field(default_factory=list)
    """Its gates as they were."""

    @classmethod
    def of(cls, directory: Path) -> ReleaseRef:
        """Raises ReleaseError or ManifestError if the directory is not a finished release."""
        gates = read_release(directory).gates
        return cls(version=directory.name, digest=read_manifest(directory).digest, gates=gates)


def write_release(
    output: Path,
    workload: str,
    target: Manifest,
    speculator: Manifest | None,
    k: int,
    gates: list[GateResult],
    serving: DrafterServing,
    policy: ReleasePolicy | None = None,
    settings: ReleaseSettings | None = None,
    target_directory: Path | None = None,
    choice: DraftingChoice | None = None,
    base: Manifest | None = None,
    worth: str = "",
) -> Release:
    """Writes release.json, drafting.json and the serving files into `output`, whose name is the release's version.

    k: the number of tokens that the drafter proposes. serving: how servers run the drafter. target_directory: where the target
    is, for its generation_config.json and its chat template; None: the release has no generation_config.json. choice: what is
    drafted with; None: the drafter, if there is one. base: the model that the target's adapter was trained on, for a release of
    form adapter, which also needs target_directory.

    Raises ReleaseError for a target whose answers end at no token, or, with a base, without an adapter."""
    settings = settings or ReleaseSettings()
    try:
        adapter = lay_adapter(output, workload, target, target_directory, base) if base and target_directory else None
    except NoAdapterError as error:
        raise ReleaseError(str(error)) from error
    release = Release(
        workload=workload,
        target=_part(target),
        speculator=_part(speculator) if speculator else None,
        num_speculative_tokens=k,
        architecture=serving.architecture,
        form="adapter" if adapter else "merged",
        base=_part(base) if base and adapter else None,
        adapter=adapter,
        worth=worth,
        gates=gates,
        policy=policy or ReleasePolicy(),
        drafting=choice.drafting if choice else None,
        service=Service(
            fingerprint=fingerprint(output.name, target.digest),
            zero_retention=settings.zero_retention,
            drain_s=settings.serving.drain_s,
        ),
    )
    write_json(output / "release.json", release.model_dump(mode="json"))
    if choice is not None:
        write_choice(output, choice)
    if target_directory is not None:
        try:
            write_json(output / "generation_config.json", generation_config(target_directory))
        except NoStopIds as error:
            raise ReleaseError(str(error)) from error
    write_serving_files(
        output,
        ServingPlan(
            workload=workload,
            version=output.name,
            target=release.target.path,
            drafter=release.speculator.path if release.speculator else None,
            serving=serving,
            drafting=release.served_drafting,
            service=release.service,
            settings=settings.serving.on(settings.serve_on),
            has_generation_config=target_directory is not None,
            tools=tuple(tool_words(template_files.template_text(target_directory))) if target_directory else (),
            base=release.base.path if release.base else None,
            adapter=adapter.path if adapter else None,
            rank=adapter.rank if adapter else 0,
            gguf=next((f"{release.target.path}/{file.path}" for file in target.files if file.path.endswith(".gguf")), None),
        ),
    )
    return release


def read_release(directory: Path) -> Release:
    try:
        return Release.model_validate_json((directory / "release.json").read_text())
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{directory} holds no readable release.json") from error


def erased_rows(lake: LakeLayout, release: Release) -> int:
    """Rows that a release's target or drafter learnt and that were erased since. A part that is gone counts as none."""
    records = []
    for part in release.parts:
        with suppress(ManifestError):
            records.append(read_manifest(lake.root / part.path))
    return rows_erased_from(lake, records)


def _part(manifest: Manifest) -> Part:
    name, version = manifest.name, manifest.version
    return Part(path=f"models/{name}/{version}", name=name, version=version, digest=manifest.digest)


class NoStopIds(ValueError):
    """A target whose answers would never end by themselves."""


def generation_config(target: Path) -> dict[str, Any]:
    """From generation_config.json, with the stop ids of config.json where it names none. Raises NoStopIds if neither does."""
    config = _read(target / "generation_config.json")
    ids = config.get("eos_token_id")
    ids = _read(target / "config.json").get("eos_token_id") if ids is None else ids
    if ids is None or ids == []:
        raise NoStopIds(
            f"{target} names no eos_token_id in generation_config.json or config.json, so answers would never end: "
            "set it in the base model and train again"
        )
    return {**config, "eos_token_id": ids if isinstance(ids, list) else [ids]}


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


SHORTEST_SURE = 6
MOST_LISTED = 10


class UnknownReleaseError(Misuse, ReleaseError):
    """A name that no release has, or more than one."""


class UnsureNameError(Misuse):
    """The beginning of a version is too short to act upon without confirmation."""


@dataclass(frozen=True)
class NamedRelease:
    """A release, and the given beginning of its version."""

    directory: Path
    given: str = ""

    @property
    def sure(self) -> bool:
        """Whether the given name is long enough to act upon without confirmation."""
        return not self.given or len(self.given) >= SHORTEST_SURE


def find_release(lake: LakeLayout, text: str, workload: str = "") -> NamedRelease:
    """Finds a release, among all workloads or in one. Raises UnknownReleaseError unless exactly one is meant."""
    root = lake.artefacts("release")
    directory = Path(text).expanduser()
    if text and (directory / "release.json").exists():
        directory = directory.resolve()
        if directory.parent.parent != root or workload not in ("", directory.parent.name):
            raise UnknownReleaseError(f"{directory} is no release of {workload or lake.place}: name its own lake with --lake")
        return NamedRelease(directory)
    named, _, version = text.rstrip("/").rpartition("/")
    releases = [path.parent for path in root.glob("*/*/manifest.json")]
    releases = [path for path in releases if workload in ("", path.parent.name)]
    of_workload = [path for path in releases if named in ("", path.parent.name)]
    whole = [path for path in of_workload if path.name == version]
    matches = whole or [path for path in of_workload if version and path.name.startswith(version)]
    if len(matches) == 1:
        return NamedRelease(matches[0], "" if whole else version)
    problem = "names more than one release" if matches else "names no release"
    raise UnknownReleaseError(
        f"{text!r} {problem} of {workload or lake.place}; there are: {_listed(root, matches or releases)}"
    )


def _listed(root: Path, releases: list[Path]) -> str:
    newest = sorted(releases, key=lambda path: -(path / "manifest.json").stat().st_mtime)
    said = ", ".join(path.relative_to(root).as_posix() for path in newest[:MOST_LISTED])
    more = len(newest) - MOST_LISTED
    return (said or "none yet") + (f" and {more} more" if more > 0 else "")
