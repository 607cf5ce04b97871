"""Serving files for containers and Kubernetes, from one ServingPlan.

    compose(plan)              # docker-compose.yaml, started in the release's directory
    kubernetes(plan)           # kubernetes.yaml: a Deployment with vLLM and its Service
"""

from __future__ import annotations

from typing import Any

from model_ops.serving.service import ServerKind
from resources.releasing.serving_plan import LLAMA_CPP, PROGRAMS, ServingPlan

MOUNTED = "/mnt/lake"
PORT = 8000
SHARED_MEMORY = "8gb"
"""Of a container's own: requests pass through it, and it ends with the container, as the host's would not."""
AFTER_DRAIN_S = 30
"""Seconds beyond draining after which a container is killed."""


def compose(plan: ServingPlan) -> dict[str, Any]:
    """One service for each server. vLLM's is started by `docker compose up`, the others by their profile."""
    services: dict[str, dict[str, Any]] = {server: _composed(plan, server) for server in plan.servers}
    if "sglang" in services:
        services["sglang"]["profiles"] = ["sglang"]
    if plan.gguf is not None and plan.adapter is None:
        services["llama-cpp"] = _container(plan, plan.settings.images.llama_cpp, ["/app/llama-server"], [
            *plan.llama_cpp_words(MOUNTED), "--host", "0.0.0.0", "--port", str(PORT)], {}) | {"profiles": ["llama-cpp"]}
    return {"name": f"{dns_name(plan.workload)}-{plan.version}", "services": services}


def kubernetes(plan: ServingPlan) -> list[dict[str, Any]]:
    """vLLM's servers. A pod takes requests once /health answers, and ends when those that it has are answered."""
    name = dns_name(plan.workload)
    asked = {"path": "/health", "port": PORT}
    container = {
        "name": "vllm", "image": plan.settings.images.vllm, "command": program("vllm"), "args": _listening(plan, "vllm"),
        "env": [{"name": name, "value": value} for name, value in plan.environment("vllm", MOUNTED).items()],
        "ports": [{"containerPort": PORT}], "resources": _resources(plan),
        "readinessProbe": {"httpGet": asked},
        "startupProbe": {"httpGet": dict(asked), "periodSeconds": 10, "failureThreshold": 360},
        "volumeMounts": [{"name": "lake", "mountPath": MOUNTED, "readOnly": True}, {"name": "shm", "mountPath": "/dev/shm"}]}
    pod = {
        "terminationGracePeriodSeconds": plan.service.drain_s + AFTER_DRAIN_S, "containers": [container],
        "volumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": plan.settings.claim, "readOnly": True}},
                    {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment",
         "metadata": {"name": name, "labels": {"millrace/release": plan.version}},
         "spec": {"replicas": plan.settings.replicas, "selector": {"matchLabels": {"app": name}},
                  "template": {"metadata": {"labels": {"app": name}}, "spec": pod}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
         "spec": {"selector": {"app": name}, "ports": [{"port": PORT, "targetPort": PORT}]}}]


def dns_name(workload: str) -> str:
    """A workload's name as Kubernetes and Compose take it: no underscore, 40 characters at most."""
    return workload.replace("_", "-")[:40].rstrip("-")


def program(server: ServerKind) -> list[str]:
    """The program in a container, whose Python is python3."""
    return ["python3" if word == "python" else word for word in PROGRAMS[server]]


def _composed(plan: ServingPlan, server: ServerKind) -> dict[str, Any]:
    image = f"${{{server.upper()}_IMAGE:-{getattr(plan.settings.images, server)}}}"
    return _container(plan, image, program(server), _listening(plan, server), plan.environment(server, MOUNTED))


def _listening(plan: ServingPlan, server: ServerKind) -> list[str]:
    return [*plan.words(server, MOUNTED), "--host", "0.0.0.0", "--port", str(PORT)]


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
