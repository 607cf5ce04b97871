"""The provenance of a release: an in-toto statement with a SLSA v1 predicate that names data, base weights and code.

    statement = provenance(workload, version, served, ancestry, licences, run_id, files)      # provenance.json in the release

Subjects are the files of target and drafter, or of an adapter and its base; resolvedDependencies are the datasets, the slices
of tables, the base models and the code. Forms: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resources.artefacts.manifest import Input, Manifest

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:millrace:build:recipe:v1"


def provenance(
    workload: str, version: str, served: Sequence[Manifest], ancestry: Sequence[Manifest], licences: Mapping[str, str],
    run_id: str, files: Mapping[str, str],
) -> dict[str, Any]:
    """The statement. served: target and drafter. ancestry: what they were made from. licences: by external model's name. files:
    sha256 of the files that servers load, by path in the lake."""
    subjects = [{"name": path, "digest": {"sha256": sha256}} for path, sha256 in files.items()]
    made = [*served, *(item for item in ancestry if item not in served)]
    dependencies = {_uri(item): _dependency(item, licences) for manifest in made for item in manifest.inputs}
    code = {item.code.revision: item.code.dirty for item in made if item.code.revision}
    for revision, dirty in sorted(code.items()):
        dependencies[f"git+millrace@{revision}"] = {
            "uri": f"git+millrace@{revision}", "digest": {"gitCommit": revision}, "annotations": {"uncommittedChanges": dirty}}
    return {
        "_type": STATEMENT, "subject": subjects, "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"workload": workload, "release": version,
                                       "recipes": sorted({item.recipe_digest for item in made if item.recipe_digest})},
                "internalParameters": {f"{item.name}@{item.version}": item.config for item in served},
                "resolvedDependencies": [dependencies[uri] for uri in sorted(dependencies)],
            },
            "runDetails": {
                "builder": {"id": "urn:millrace:builder", "version": dict(sorted(served[0].environment.items()))},
                "metadata": {"invocationId": run_id, "startedOn": min(item.created_at for item in made).isoformat(),
                             "finishedOn": max(item.created_at for item in served).isoformat()},
            },
        },
    }


def _uri(item: Input) -> str:
    if item.kind == "external":
        return f"model:{_named(item)}"
    return f"lake:{item.kind}/{item.name}" + (f"@{item.version}" if item.version else "")


def _dependency(item: Input, licences: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"uri": _uri(item), "digest": {"sha256": item.digest}}
    if item.kind == "external" and (licence := licences.get(item.name)):
        found["annotations"] = {"licence": licence}
    return found


def _named(item: Input) -> str:
    """An external model's name, without the folders of this machine."""
    return Path(item.name).name if Path(item.name).is_absolute() else item.name
