"""A release: what an endpoint needs, by reference and digest, and how to serve it; its gates; its approval.

`<lake>/releases/<workload>/<version>/` holds release.json (target, drafter, gates, by relative path and digest),
serve-vllm.sh and serve-sglang.sh, and the report. `recheck` is run again before an alias moves: a check that stopped
one run of the graph does not stop a later one.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from resources.atomic import write_json, write_text
from resources.lake import Lake
from resources.manifest import Manifest, ManifestError, changed_files, read_manifest
from resources.releasing.parts import disagreements, superseded

DRAFTS = {
    "vllm": {"eagle3": "eagle3", "eagle3.1": "eagle3", "p_eagle": "eagle3", "dflash": "dflash", "medusa": "medusa",
             "mtp": "mtp", "draft_model": "draft_model"},
    "sglang": {"eagle3": "EAGLE3", "eagle3.1": "EAGLE3", "dflash": "DFLASH", "draft_model": "STANDALONE"},
}
"""What each server calls the drafter architectures that it runs."""


class ReleaseError(Exception):
    """A release cannot be approved or served as it is."""


class Gates(BaseModel):
    """What a release must reach before anyone may approve it. Null switches a gate off."""

    model_config = ConfigDict(extra="forbid")

    recovery: float | None = Field(0.99, gt=0, le=1.5, description="exp(reference loss - served loss) per token")
    acceptance_length: float | None = Field(
        1.2, ge=1, description="lower end of the 95 % interval of tau, at the recipe's K and temperature"
    )


class ReleaseSettings(BaseModel):
    """How a release is made and let through."""

    model_config = ConfigDict(extra="forbid")

    approval: Literal["person", "automatic"] = "person"
    gates: Gates = Field(default_factory=Gates)


class GateResult(BaseModel):
    name: str
    wanted: float
    measured: float | None
    passed: bool


class Part(BaseModel):
    """A model that the release serves: where it lies, relative to the lake, and what its files must hash to."""

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
    """Of the drafter."""
    gates: list[GateResult]

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)


def judge(gates: Gates, evaluation: dict[str, Any], temperature: float, drafter: str | None) -> list[GateResult]:
    """Each gate that is switched on, against the evaluation report's metrics. What was not measured has not passed.

    drafter: the architecture of the release's drafter, None where it has none.
    """
    results = []
    if gates.recovery is not None:
        recovery = evaluation.get("recovery")
        passed = recovery is not None and recovery >= gates.recovery
        results.append(GateResult(name="recovery", wanted=gates.recovery, measured=recovery, passed=passed))
    if gates.acceptance_length is not None and drafter is not None:
        measured = evaluation.get(f"tau_{drafter}_t{temperature:g}_low")
        passed = measured is not None and measured >= gates.acceptance_length
        results.append(
            GateResult(name="acceptance_length", wanted=gates.acceptance_length, measured=measured, passed=passed)
        )
    return results


def write_release(
    output: Path, workload: str, target: Manifest, speculator: Manifest | None, k: int, gates: list[GateResult],
    architecture: str = "eagle3",
) -> Release:
    """Fills a release's directory but for its report. k, architecture: of the drafter."""
    release = Release(
        workload=workload,
        target=_part(target),
        speculator=_part(speculator) if speculator else None,
        num_speculative_tokens=k,
        architecture=architecture,
        gates=gates,
    )
    write_json(output / "release.json", release.model_dump(mode="json"))
    for server, command in (("vllm", _vllm(release)), ("sglang", _sglang(release))):
        script = output / f"serve-{server}.sh"
        write_text(script, _script(server, command, _note(server, release)))
        script.chmod(0o755)
    return release


def find_release(lake: Lake, text: str) -> Path:
    """The directory of a release named by version, prefix of one, workload/version, or path. Raises ReleaseError."""
    root = lake.artefacts("release")
    if (Path(text) / "release.json").exists():
        return Path(text).resolve()
    workload, _, version = text.rpartition("/")
    found = [
        path.parent
        for path in root.glob("*/*/manifest.json")
        if path.parent.name.startswith(version) and workload in ("", path.parent.parent.name)
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(path.parent.relative_to(root).as_posix() for path in root.glob("*/*/manifest.json")))
    problem = "names more than one release" if found else "names no release"
    raise ReleaseError(f"{text!r} {problem} of {lake.root}; there are: {known or 'none yet'}")


def read_release(directory: Path) -> Release:
    try:
        return Release.model_validate_json((directory / "release.json").read_text())
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{directory} holds no readable release.json") from error


def recheck(lake: Lake, directory: Path) -> list[str]:
    """What is wrong with a release now: gates, every file of it and of its parts, and whether the parts belong together."""
    release = read_release(directory)
    missed = [gate for gate in release.gates if not gate.passed]
    problems = [f"gate {gate.name}: {gate.measured} where {gate.wanted} is wanted" for gate in missed]
    for place, digest in [(directory, None), *((lake.root / part.path, part.digest) for part in _parts(release))]:
        try:
            manifest = read_manifest(place)
        except ManifestError as error:
            problems.append(str(error))
            continue
        changed = changed_files(place, manifest)
        if changed:
            problems.append(f"{place}: {', '.join(changed[:3])}{' and others' if len(changed) > 3 else ''} changed: its files "
                            "are not those the release was made from")
        if digest is not None and digest != manifest.digest:
            problems.append(f"{place}: its digest is {manifest.digest[:12]}, and the release was made from {digest[:12]}")
    return problems + disagreements(lake, directory)


def approve(lake: Lake, directory: Path, by: str) -> None:
    """Records a person's approval, beside the releases. Raises ReleaseError when a re-check finds anything wrong."""
    problems = recheck(lake, directory) + superseded(lake, directory)
    if problems:
        raise ReleaseError(f"release {directory.name} cannot be approved: " + "; ".join(problems))
    record = {"release": directory.name, "digest": read_manifest(directory).digest, "by": by,
              "at": datetime.now(UTC).isoformat()}
    write_json(_approval(lake, directory), record)


def is_approved(lake: Lake, directory: Path) -> bool:
    """Whether someone approved exactly this release: its digest, not only its name."""
    path = _approval(lake, directory)
    if not path.exists():
        return False
    record = json.loads(path.read_text())
    return not record.get("withdrawn") and record["digest"] == read_manifest(directory).digest


def was_decided(lake: Lake, directory: Path) -> bool:
    """Whether someone approved this release, or withdrew it: then no automatic approval speaks over them."""
    return _approval(lake, directory).exists()


def withdraw(lake: Lake, directory: Path, by: str) -> None:
    """Takes an approval back, so that no later run of the graph serves this release again by itself."""
    record = {"release": directory.name, "digest": read_manifest(directory).digest, "withdrawn": True, "by": by,
              "at": datetime.now(UTC).isoformat()}
    write_json(_approval(lake, directory), record)


def approved_by(lake: Lake, directory: Path) -> str:
    return json.loads(_approval(lake, directory).read_text())["by"]


def person() -> str:
    """Who runs this command, as far as the environment tells."""
    return os.environ.get("MILLRACE_USER") or os.environ.get("USER") or os.environ.get("LOGNAME") or "unknown"


def _approval(lake: Lake, directory: Path) -> Path:
    return lake.root / "endpoints" / "approvals" / directory.parent.name / f"{directory.name}.json"


def _parts(release: Release) -> list[Part]:
    return [part for part in (release.target, release.speculator) if part is not None]


def _part(manifest: Manifest) -> Part:
    return Part(
        path=f"models/{manifest.name}/{manifest.version}", name=manifest.name, version=manifest.version,
        digest=manifest.digest,
    )


def vllm_drafts(architecture: str, directory: str, num_speculative_tokens: int) -> dict[str, Any]:
    """vLLM's --speculative-config for a drafter of a kind that it runs."""
    options: dict[str, Any] = {"method": DRAFTS["vllm"][architecture], "model": directory,
                               "num_speculative_tokens": num_speculative_tokens}
    if architecture == "p_eagle":
        options["parallel_drafting"] = True
    if architecture != "medusa":  # whose heads propose their likeliest token whatever is asked for
        options |= {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
    return options


def _vllm(release: Release) -> str:
    command = f'vllm serve "$LAKE/{release.target.path}" --served-model-name {release.workload}'
    if release.speculator and release.architecture in DRAFTS["vllm"]:
        options = vllm_drafts(release.architecture, f"$LAKE/{release.speculator.path}", release.num_speculative_tokens)
        quoted = json.dumps(options).replace('"', '\\"')
        command += f' --speculative-config "{quoted}"'
        if release.architecture == "mtp":  # vLLM reads how many such layers there are in the target's config, which has none
            command += """ --hf-overrides '{"num_nextn_predict_layers": 1}'"""
    return command


def _sglang(release: Release) -> str:
    command = f'python -m sglang.launch_server --model "$LAKE/{release.target.path}"'
    command += f" --served-model-name {release.workload}"
    algorithm = DRAFTS["sglang"].get(release.architecture)
    if release.speculator and algorithm:
        k = release.num_speculative_tokens
        command += f' --speculative-algorithm {algorithm} --speculative-draft-model-path "$LAKE/{release.speculator.path}"'
        if algorithm != "DFLASH":  # which drafts a whole block in one step
            command += f" --speculative-num-steps {k} --speculative-eagle-topk 1"
        command += f" --speculative-num-draft-tokens {k + 1}"
    return command


def _note(server: str, release: Release) -> str:
    """A line of shell that says so where a server runs no drafter of this kind."""
    if release.speculator is None or release.architecture in DRAFTS[server]:
        return ""
    return f"echo '{server} runs no drafter of kind {release.architecture}: the target is served without it' >&2\n"


def _script(server: str, command: str, note: str) -> str:
    return f"""#!/usr/bin/env bash
# Serves this release with {server}. Arguments are passed on, e.g. --port 8000.
{note}set -euo pipefail
LAKE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")/../../.." && pwd)
exec {command} "$@"
"""
