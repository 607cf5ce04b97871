"""A release: target and drafter by path and digest, gates, and serving scripts.

`<lake>/releases/<workload>/<version>/` holds release.json (target, drafter, gates, by relative path and digest),
serve-vllm.sh and serve-sglang.sh, and the report. `recheck` is run again before an alias moves: a check that stopped
one run of the graph does not stop a later one.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from model_ops.atomic_files import write_json
from model_ops.speculators.serving import Serving
from resources.artefacts.manifest import Manifest, ManifestError, changed_files, digest_holds, read_manifest
from resources.artefacts.taint import rows_erased_from
from resources.lake import Lake
from resources.releasing.gate_result import ERASED_ROWS, GateResult, missed
from resources.releasing.gate_settings import Gates
from resources.releasing.parts import disagreements
from resources.releasing.serving_scripts import write_scripts


class ReleaseError(Exception):
    """A release cannot be approved or served."""


class ReleaseSettings(BaseModel):
    """How a release is approved."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = Field(
        True, description="false: no release is made and nothing is served; the models, the drafter and the evaluation report "
        "stay in the lake")
    approval: Literal["person", "automatic"] = Field(
        "person", description="person: `millrace approve` releases it. automatic: it is released when its gates hold")
    gates: Gates = Field(default_factory=Gates, description="Bounds that a release must meet")
    serve_on: str | None = Field(
        None, description="Server and device of the endpoint, such as vllm/h100, sglang/sm80, vllm/cpu. A quantize.scheme that "
        "they do not load is refused. Left out: any scheme is accepted")


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
    gates: list[GateResult]

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)


def write_release(
    output: Path, workload: str, target: Manifest, speculator: Manifest | None, k: int, gates: list[GateResult],
    serving: Serving,
) -> Release:
    """Writes release.json and the serving scripts. k: the number of tokens that the drafter proposes; serving: how servers
    run the drafter."""
    release = Release(
        workload=workload,
        target=_part(target),
        speculator=_part(speculator) if speculator else None,
        num_speculative_tokens=k,
        architecture=serving.architecture,
        gates=gates,
    )
    write_json(output / "release.json", release.model_dump(mode="json"))
    drafter = release.speculator.path if release.speculator else None
    write_scripts(output, workload, release.target.path, drafter, serving, k)
    return release


def read_release(directory: Path) -> Release:
    try:
        return Release.model_validate_json((directory / "release.json").read_text())
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{directory} holds no readable release.json") from error


def recheck(lake: Lake, directory: Path) -> list[str]:
    """Checks a release again: gates, digests of all its files, whether its parts belong together, and, for the gate on erased
    rows, what was erased since."""
    release = read_release(directory)
    problems = [problem for gate in release.gates if (problem := missed(_now(gate, lake, release)))]
    for place, digest in [(directory, None), *((lake.root / part.path, part.digest) for part in _parts(release))]:
        try:
            manifest = read_manifest(place)
            lake.mirror.fetch(place)
        except ManifestError as error:
            problems.append(str(error))
            continue
        changed = changed_files(place, manifest)
        if changed:
            problems.append(f"{place}: {', '.join(changed[:3])}{' and others' if len(changed) > 3 else ''} changed: its files "
                            "are not those the release was made from")
        if not digest_holds(manifest):
            problems.append(f"{place}: the digest in its manifest does not fit the files it lists: restore it from a copy")
        if digest is not None and digest != manifest.digest:
            problems.append(f"{place}: its digest is {manifest.digest[:12]}, and the release was made from {digest[:12]}")
    return problems + disagreements(lake, directory)


def erased_rows(lake: Lake, release: Release) -> int:
    """Rows that a release's target or drafter learnt and that were erased since. A part that is gone counts as none."""
    found = []
    for part in _parts(release):
        with suppress(ManifestError):
            found.append(read_manifest(lake.root / part.path))
    return rows_erased_from(lake, found)


def _now(gate: GateResult, lake: Lake, release: Release) -> GateResult:
    """A gate with its measurement as it is now."""
    if gate.name != ERASED_ROWS:
        return gate
    return gate.model_copy(update={"measured": erased_rows(lake, release), "passed": True})


def _parts(release: Release) -> list[Part]:
    return [part for part in (release.target, release.speculator) if part is not None]


def _part(manifest: Manifest) -> Part:
    return Part(
        path=f"models/{manifest.name}/{manifest.version}", name=manifest.name, version=manifest.version,
        digest=manifest.digest,
    )
