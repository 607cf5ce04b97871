"""Serving files for containers and Kubernetes, all from one ServingPlan.

    vllm_config(plan)          # vllm.yaml: `vllm serve --config`, started in the lake's directory
    compose(plan)              # docker-compose.yaml, started in the release's directory
    kserve(plan)               # kserve.yaml: LLMInferenceService, serving.kserve.io/v1alpha2
    production_stack(plan)     # production-stack-values.yaml of the chart vllm/vllm-stack

Documented forms: https://docs.vllm.ai/en/v0.32.0/configuration/serve_args/, kserve's docs/samples/llmisvc, and
production-stack's helm/values.schema.json. KServe's own preset starts vLLM and appends VLLM_ADDITIONAL_ARGS as shell words; it
mounts the target at /mnt/models. `spec.speculator`, which its newest versions have, holds strings only and would be dropped by
older ones, so the drafter is one of these words.
"""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from typing import Any

from model_ops.serving.service import ServerKind
from resources.releasing.serving_plan import LLAMA_CPP, PROGRAMS, ServingPlan

MOUNTED = "/mnt/lake"
PORT = 8000
SHARED_MEMORY = "8gb"
"""Of a container's own: requests pass through it, and it ends with the container, as the host's would not."""
AFTER_DRAIN_S = 30
"""Seconds beyond draining after which a container is killed."""


def vllm_config(plan: ServingPlan) -> dict[str, Any]:
    """The flags as `vllm serve --config` reads them; paths are relative to the lake."""
    target, *flags = plan.words("vllm", ".")
    return {"model": target, **as_mapping(flags)}


def as_mapping(flags: list[str]) -> dict[str, Any]:
    """`--name value` as name: value, JSON values as mappings, and flags without a value as true."""
    found: dict[str, Any] = {}
    for word, following in pairwise([*flags, "--"]):
        if word.startswith("--"):
            found[word[2:]] = True if following.startswith("--") else _value(following)
    return found


def compose(plan: ServingPlan) -> dict[str, Any]:
    """One service for each server. vLLM's is started by `docker compose up`, the others by their profile."""
    services: dict[str, dict[str, Any]] = {server: _composed(plan, server) for server in plan.servers}
    if "sglang" in services:
        services["sglang"]["profiles"] = ["sglang"]
    if plan.gguf is not None and plan.adapter is None:
        services["llama-cpp"] = _container(plan, plan.settings.images.llama_cpp, ["/app/llama-server"], [
            *plan.llama_cpp_words(MOUNTED), "--host", "0.0.0.0", "--port", str(PORT)], {}) | {"profiles": ["llama-cpp"]}
    return {"name": f"{dns_name(plan.workload)}-{plan.version}", "services": services}


def kserve(plan: ServingPlan) -> dict[str, Any]:
    words = plan.words("vllm", MOUNTED)
    given = ["--served-model-name", plan.served_name]  # KServe's preset writes both from spec.model
    place = words.index(given[0])
    rest = [*words[1:place], *words[place + len(given):]]
    environment = {**plan.environment("vllm", MOUNTED), "VLLM_ADDITIONAL_ARGS": shlex.join(rest)}
    return {
        "apiVersion": "serving.kserve.io/v1alpha2", "kind": "LLMInferenceService",
        "metadata": {"name": dns_name(plan.workload), "labels": {"millrace/release": plan.version}},
        "spec": {
            "model": {"uri": f"pvc://{plan.settings.claim}/{plan.model}", "name": plan.served_name},
            "replicas": plan.settings.replicas,
            "router": {"route": {}, "gateway": {}},
            "template": {
                "terminationGracePeriodSeconds": plan.service.drain_s + AFTER_DRAIN_S,
                "containers": [{
                    "name": "main", "image": plan.settings.images.vllm, "env": _environment(environment),
                    "resources": _resources(plan), "volumeMounts": [_MOUNT],
                }],
                "volumes": [_volume(plan)],
            },
        },
    }


def production_stack(plan: ServingPlan) -> dict[str, Any]:
    """Values of the chart, which turns prefix caching off unless it is told to leave it on."""
    repository, _, tag = plan.settings.images.vllm.rpartition(":")
    target, *flags = plan.words("vllm", MOUNTED)
    caching = "--no-enable-prefix-caching"
    model = {
        "name": dns_name(plan.workload), "repository": repository, "tag": tag, "modelURL": target,
        "replicaCount": plan.settings.replicas, "requestCPU": plan.settings.cpus,
        "requestMemory": f"{plan.settings.memory_gib}Gi", "requestGPU": plan.settings.gpus,
        "vllmConfig": {"enablePrefixCaching": caching not in flags, "extraArgs": [word for word in flags if word != caching]},
        "env": _environment(plan.environment("vllm", MOUNTED)),
        "extraVolumes": [_volume(plan)], "extraVolumeMounts": [_MOUNT],
    }
    return {"servingEngineSpec": {"enableEngine": True, "modelSpec": [model]}}


def dns_name(workload: str) -> str:
    """A workload's name as Kubernetes and Compose take it: no underscore, 40 characters at most."""
    return workload.replace("_", "-")[:40].rstrip("-")


def program(server: ServerKind) -> list[str]:
    """The program in a container, whose Python is python3."""
    return ["python3" if word == "python" else word for word in PROGRAMS[server]]


def _composed(plan: ServingPlan, server: ServerKind) -> dict[str, Any]:
    words = [*plan.words(server, MOUNTED), "--host", "0.0.0.0", "--port", str(PORT)]
    image = f"${{{server.upper()}_IMAGE:-{getattr(plan.settings.images, server)}}}"
    return _container(plan, image, program(server), words, plan.environment(server, MOUNTED))


def _container(plan: ServingPlan, image: str, entrypoint: list[str], words: list[str], environment: dict[str, str]
               ) -> dict[str, Any]:
    found: dict[str, Any] = {
        "image": image, "entrypoint": entrypoint, "command": [word.replace("$", "$$") for word in words],
        "volumes": [f"../../..:{MOUNTED}:ro"], "ports": [f"${{PORT:-{PORT}}}:{PORT}"], "shm_size": SHARED_MEMORY,
        "stop_grace_period": f"{plan.service.drain_s + AFTER_DRAIN_S}s"}
    if environment:
        found["environment"] = environment
    if plan.service.zero_retention:
        found["ulimits"] = {"core": 0}
    if plan.settings.gpus and LLAMA_CPP not in entrypoint[0]:
        device = {"driver": "nvidia", "count": plan.settings.gpus, "capabilities": ["gpu"]}
        found["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return found


def _resources(plan: ServingPlan) -> dict[str, Any]:
    asked = {"cpu": str(plan.settings.cpus), "memory": f"{plan.settings.memory_gib}Gi"}
    gpus = {"nvidia.com/gpu": str(plan.settings.gpus)} if plan.settings.gpus else {}
    return {"requests": {**asked, **gpus}, **({"limits": gpus} if gpus else {})}


def _environment(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


_MOUNT = {"name": "lake", "mountPath": MOUNTED, "readOnly": True}


def _volume(plan: ServingPlan) -> dict[str, Any]:
    return {"name": "lake", "persistentVolumeClaim": {"claimName": plan.settings.claim, "readOnly": True}}


def _value(text: str) -> Any:
    return json.loads(text) if text.startswith(("{", "[")) else int(text) if text.isdigit() else text
