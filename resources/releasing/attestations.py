"""Attests a release: writes its provenance and its bill of materials, and signs it.

    write_attestations(output, lake, release, served, run_id)     # bom.cdx.json, provenance.json: files of the release
    attest(lake, directory, key)                                  # model.sig, provenance.dsse.json: beside its manifest

The provenance is an in-toto statement with a SLSA v1 predicate. Subjects are the files of target and drafter, or of an adapter
and its base; resolvedDependencies are the datasets, the slices of tables, the base models and the code. Forms:
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance

The bill of materials is a CycloneDX 1.7 ML-BOM. Components: the release (the subject), target and drafter as
machine-learning-model with a model card each, base models, datasets as data, and the Python packages that made them.
`dependencies` is the graph of what was made from what. Form: https://cyclonedx.org/docs/1.7/json/; tests validate it."""

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_ops.files import write_json
from resources.artefacts import behind, licences_of
from resources.endpoints import recheck_unsigned
from resources.lake import LakeLayout
from resources.manifests import WITH_TEXT, Input, Manifest, describe_files
from resources.releases import FOLDER, GateResult, Release, ReleaseError
from resources.signing import PROVENANCE, SigningKey, sign_release
from resources.stages import stage


def write_attestations(output: Path, lake: LakeLayout, release: Release, served: Sequence[Manifest], run_id: str) -> None:
    """Writes the bill of materials and the provenance of a release that is being made. served: target and drafter, or target
    and the base of its adapter."""
    ancestry = [manifest for _, manifest in behind(lake, served) if manifest is not None]
    licences = licences_of([*served, *ancestry])
    of = release.workload, output.name, served, ancestry, licences
    write_json(output / BOM, bill_of_materials(*of, release.gates))
    write_json(output / PROVENANCE, provenance(*of, run_id, _served_files(output, release, served)))


def _served_files(output: Path, release: Release, served: Sequence[Manifest]) -> dict[str, str]:
    """sha256 of every file that a server loads weights or a tokenizer from, by path in the lake."""
    files = {}
    if release.adapter is not None:
        files = {f"{release.adapter.path}/{file.path}": file.sha256 for file in describe_files(output / FOLDER)}
    loaded = {part.path for part in release.served_parts}
    places = {f"models/{item.name}/{item.version}": item for item in served}
    return files | {
        f"{place}/{file.path}": file.sha256
        for place, item in places.items()
        if place in loaded
        for file in item.files
        if file.path not in WITH_TEXT
    }


def attest(lake: LakeLayout, directory: Path, key: SigningKey) -> None:
    """Signs a release and its provenance. Raises ReleaseError for one whose files or parts are not those that were made, or
    that has no provenance."""
    if problems := recheck_unsigned(lake, directory):
        raise ReleaseError(f"release {directory.name} is not signed: " + "; ".join(problems))
    if not (directory / PROVENANCE).exists():
        raise ReleaseError(
            f"release {directory.name} has no {PROVENANCE}: run the recipe again, and sign the release that it makes"
        )
    sign_release(lake, directory, key)


STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:millrace:build:recipe:v1"


def provenance(
    workload: str,
    version: str,
    served: Sequence[Manifest],
    ancestry: Sequence[Manifest],
    licences: Mapping[str, str],
    run_id: str,
    files: Mapping[str, str],
) -> dict[str, Any]:
    """The statement. served: target and drafter. ancestry: what they were made from. licences: by external model's name. files:
    sha256 of the files that servers load, by path in the lake."""
    subjects = [{"name": path, "digest": {"sha256": sha256}} for path, sha256 in files.items()]
    parts = [*served, *(item for item in ancestry if item not in served)]
    dependencies = {_uri(item): _dependency(item, licences) for manifest in parts for item in manifest.inputs}
    code = {item.code.revision: item.code.dirty for item in parts if item.code.revision}
    for revision, dirty in sorted(code.items()):
        dependencies[f"git+millrace@{revision}"] = {
            "uri": f"git+millrace@{revision}",
            "digest": {"gitCommit": revision},
            "annotations": {"uncommittedChanges": dirty},
        }
    return {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "workload": workload,
                    "release": version,
                    "recipes": sorted({item.recipe_digest for item in parts if item.recipe_digest}),
                },
                "internalParameters": {f"{item.name}@{item.version}": item.config for item in served},
                "resolvedDependencies": [dependencies[uri] for uri in sorted(dependencies)],
            },
            "runDetails": {
                "builder": {"id": "urn:millrace:builder", "version": dict(sorted(served[0].environment.items()))},
                "metadata": {
                    "invocationId": run_id,
                    "startedOn": min(item.created_at for item in parts).isoformat(),
                    "finishedOn": max(item.created_at for item in served).isoformat(),
                },
            },
        },
    }


def _uri(item: Input) -> str:
    if item.kind == "external":
        return f"model:{_named(item)}"
    return f"lake:{item.kind}/{item.name}" + (f"@{item.version}" if item.version else "")


def _dependency(item: Input, licences: Mapping[str, str]) -> dict[str, Any]:
    dependency: dict[str, Any] = {"uri": _uri(item), "digest": {"sha256": item.digest}}
    if item.kind == "external" and (licence := licences.get(item.name)):
        dependency["annotations"] = {"licence": licence}
    return dependency


def _named(item: Input) -> str:
    """An external model's name, without the folders of this machine."""
    return Path(item.name).name if Path(item.name).is_absolute() else item.name


BOM = "bom.cdx.json"


def bill_of_materials(
    workload: str,
    version: str,
    served: Sequence[Manifest],
    ancestry: Sequence[Manifest],
    licences: Mapping[str, str],
    gates: Sequence[GateResult],
) -> dict[str, Any]:
    """The BOM. served: target and drafter, or target and the base of its adapter. ancestry: models and datasets that they were
    made from. licences: by external input's name. The serial number follows from the content, so that the same release has the
    same BOM in every lake."""
    models = {_ref(item): item for item in served}
    others = {_ref(item): item for item in ancestry if _ref(item) not in models}
    parts = (*served, *ancestry)
    external = {_input_ref(item): item for manifest in parts for item in manifest.inputs if item.kind == "external"}
    subject = f"release:{workload}@{version}"
    components = [_model(item, served, gates) for item in models.values()]
    components += [
        _model(item, (), ())
        if item.kind == "model"
        else {**_component("data", item), "data": [{"type": "dataset", "name": item.name}]}
        for item in others.values()
    ]
    components += [_external(item, licences.get(item.name, "")) for item in external.values()]
    packages = {name: installed for manifest in (*ancestry, *served) for name, installed in manifest.environment.items()}
    components += [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{installed}",
            "name": name,
            "version": installed,
            "purl": f"pkg:pypi/{name}@{installed.replace('+', '%2B')}",
        }
        for name, installed in sorted(packages.items())
    ]
    known = {component["bom-ref"] for component in components}
    revision = served[0].code.revision[:12] or "unknown"
    graph = [{"ref": subject, "dependsOn": sorted(models)}]
    graph += [
        {"ref": ref, "dependsOn": sorted({of for each in item.inputs if (of := _input_ref(each)) in known})}
        for ref, item in {**models, **others}.items()
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, subject + ''.join(sorted(m.digest for m in served)))}",
        "version": 1,
        "metadata": {
            "timestamp": max(item.created_at for item in served).isoformat(),
            "tools": {"components": [{"type": "application", "name": "millrace", "version": revision}]},
            "component": {"type": "application", "bom-ref": subject, "name": workload, "version": version},
        },
        "components": components,
        "dependencies": graph,
    }


def _model(item: Manifest, served: Sequence[Manifest], gates: Sequence[GateResult]) -> dict[str, Any]:
    name = item.name.rpartition("/")[2]
    datasets = [{"ref": _input_ref(each)} for each in item.inputs if each.kind == "dataset"]
    card: dict[str, Any] = {
        "modelParameters": {
            "approach": {"type": "self-supervised" if stage(name).group == "drafter" else "supervised"},  # CycloneDX's words
            "task": "text-generation",
            "architectureFamily": "transformer",
            "datasets": datasets,
            "inputs": [{"format": "token ids"}],
            "outputs": [{"format": "token ids"}],
        }
    }
    if served and item is served[0] and (metrics := _metrics(gates)):
        card["quantitativeAnalysis"] = {"performanceMetrics": metrics}
    return {**_component("machine-learning-model", item), "modelCard": card}


def _metrics(gates: Sequence[GateResult]) -> list[dict[str, Any]]:
    """The measured gates as the card's metrics, whose values CycloneDX writes as text."""
    metrics = []
    for gate in gates:
        if gate.measured is None:
            continue
        metric: dict[str, Any] = {"type": gate.name, "value": f"{gate.measured:.6g}"}
        if gate.on:
            metric["slice"] = gate.on
        if gate.low is not None and gate.high is not None:
            metric["confidenceInterval"] = {"lowerBound": f"{gate.low:.6g}", "upperBound": f"{gate.high:.6g}"}
        metrics.append(metric)
    return metrics


def _component(kind: str, item: Manifest) -> dict[str, Any]:
    properties = [{"name": "millrace:op", "value": item.op}]
    if item.kind == "model":
        properties += [{"name": f"millrace:sha256:{file.path}", "value": file.sha256} for file in item.files]
    return {
        "type": kind,
        "bom-ref": _ref(item),
        "name": item.name,
        "version": item.version,
        "hashes": [{"alg": "SHA-256", "content": item.digest}],
        "properties": properties,
    }


def _external(item: Input, licence: str) -> dict[str, Any]:
    component = {
        "type": "machine-learning-model",
        "bom-ref": _input_ref(item),
        "name": _named(item),
        "hashes": [{"alg": "SHA-256", "content": item.digest}],
    }
    return {**component, "licenses": [{"license": {"name": licence}}]} if licence else component


def _ref(item: Manifest) -> str:
    return f"{item.kind}:{item.name}@{item.version}"


def _input_ref(item: Input) -> str:
    return f"external:{item.digest[:12]}" if item.kind == "external" else f"{item.kind}:{item.name}@{item.version}"
