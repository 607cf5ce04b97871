"""Writes the serving files of a release: scripts for vLLM, SGLang and llama.cpp, and YAML for Docker and Kubernetes.

Paths are relative to the lake; a script finds the lake from its own location."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from model_ops.drafting import Drafting
from model_ops.files import write_json, write_text
from model_ops.serving import (
    LOGGING_CONFIG,
    ServerKind,
    Service,
    logging_config,
    lora_flags,
    runs_drafter,
    service_environment,
    serving_of,
    words_of,
)
from model_ops.speculators import DrafterServing
from resources.releases.settings import ServingSettings

MOUNTED = "/mnt/lake"
PORT = 8000
SHARED_MEMORY = "8gb"
"""Of a container's own: requests pass through it, and it ends with the container, as the host's would not."""
AFTER_DRAIN_S = 30
"""Seconds beyond draining after which a container is killed."""


LLAMA_CPP = "llama-server"


@dataclass(frozen=True)
class ServingPlan:
    """target, drafter, gguf: paths of model directories, and of the target's GGUF file, in the lake. serving: how servers run
    the drafter; unused without a drafter. base, adapter, rank: of a release of form adapter: what is served instead of target
    and drafter, in vLLM only. drafting: what is drafted with. settings: with GPUs and image filled in
    (`ServingSettings.on`). has_generation_config: whether the release's directory has one, with the stop ids. tools: vLLM's
    words for the target's form of tool calls."""

    workload: str
    version: str
    target: str
    drafter: str | None
    serving: DrafterServing
    drafting: Drafting
    service: Service = field(default_factory=Service)
    settings: ServingSettings = field(default_factory=lambda: ServingSettings().on(None))
    gguf: str | None = None
    has_generation_config: bool = False
    tools: tuple[str, ...] = ()
    base: str | None = None
    adapter: str | None = None
    rank: int = 0

    @property
    def servers(self) -> list[ServerKind]:
        """The servers that have files of their own."""
        return ["vllm"] if self.adapter else list(PROGRAMS)

    @property
    def model(self) -> str:
        """The model directory that a server is started on, in the lake."""
        return self.base or self.target

    @property
    def directory(self) -> str:
        """The release's directory in the lake."""
        return f"releases/{self.workload}/{self.version}"

    def words(self, server: ServerKind, lake: str) -> list[str]:
        """What follows the program; the target comes first. lake: where the server finds the lake."""
        drafter = f"{lake}/{self.drafter}" if self.drafter else None
        model, tokens = f"{lake}/{self.model}", self.drafting.num_speculative_tokens
        # requests name an adapter by the workload, so its base has another name
        name = f"{self.workload}-base" if self.adapter else self.workload
        words = words_of(server, model, name, drafter, self.serving, tokens, self.drafting, service=self.service)
        if self.adapter is not None:
            place = f"{lake}/{self.adapter}"
            words += ["--tokenizer", place, *lora_flags.lora_words(self.rank, 1)]
            words += lora_flags.module_words({self.workload: place})
        if server == "vllm":
            words += ["--generation-config", f"{lake}/{self.directory}"] if self.has_generation_config else []
            words += self.tools
        if (self.settings.gpus or 0) > 1:
            words += ["--tensor-parallel-size" if server == "vllm" else "--tp-size", str(self.settings.gpus)]
        return words

    def environment(self, server: ServerKind, lake: str) -> dict[str, str]:
        return service_environment(server, self.service, f"{lake}/{self.directory}")

    def llama_cpp_words(self, lake: str) -> list[str]:
        """What follows `llama-server`, which serves the target alone. It has no field for a fingerprint: the alias names the
        release."""
        words = ["--model", f"{lake}/{self.gguf}", "--alias", self.workload, "--jinja"]
        return words + (["--no-slots", "--no-cache-prompt", "--cache-ram", "0"] if self.service.zero_retention else [])

    def left_out(self, server: ServerKind) -> str:
        """One sentence for a server that does not run this kind of drafting; "" otherwise."""
        used = serving_of(self.drafting, self.serving)
        if used is None or runs_drafter(server, used):
            return ""
        return f"{server} runs no drafter of kind {used.architecture}: the target is served without it"


def compose(plan: ServingPlan) -> dict[str, Any]:
    """One service for each server. vLLM's is started by `docker compose up`, the others by their profile."""
    services: dict[str, dict[str, Any]] = {server: _composed(plan, server) for server in plan.servers}
    if "sglang" in services:
        services["sglang"]["profiles"] = ["sglang"]
    if plan.gguf is not None and plan.adapter is None:
        words = [*plan.llama_cpp_words(MOUNTED), "--host", "0.0.0.0", "--port", str(PORT)]
        container = _container(plan, plan.settings.images.llama_cpp, ["/app/llama-server"], words, {})
        services["llama-cpp"] = container | {"profiles": ["llama-cpp"]}
    return {"name": f"{dns_name(plan.workload)}-{plan.version}", "services": services}


def kubernetes(plan: ServingPlan) -> list[dict[str, Any]]:
    """vLLM's servers. A pod takes requests once /health answers, and ends when those that it has are answered."""
    name = dns_name(plan.workload)
    asked = {"path": "/health", "port": PORT}
    container = {
        "name": "vllm",
        "image": plan.settings.images.vllm,
        "command": program("vllm"),
        "args": _listening(plan, "vllm"),
        "env": [{"name": name, "value": value} for name, value in plan.environment("vllm", MOUNTED).items()],
        "ports": [{"containerPort": PORT}],
        "resources": _resources(plan),
        "readinessProbe": {"httpGet": asked},
        "startupProbe": {"httpGet": dict(asked), "periodSeconds": 10, "failureThreshold": 360},
        "volumeMounts": [{"name": "lake", "mountPath": MOUNTED, "readOnly": True}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "terminationGracePeriodSeconds": plan.service.drain_s + AFTER_DRAIN_S,
        "containers": [container],
        "volumes": [
            {"name": "lake", "persistentVolumeClaim": {"claimName": plan.settings.claim, "readOnly": True}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ],
    }
    deployment = {
        "replicas": plan.settings.replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
    }
    service = {"selector": {"app": name}, "ports": [{"port": PORT, "targetPort": PORT}]}
    about = {"name": name, "labels": {"millrace/release": plan.version}}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service},
    ]


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


def _container(
    plan: ServingPlan, image: str, entrypoint: list[str], words: list[str], environment: dict[str, str]
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "image": image,
        "entrypoint": entrypoint,
        "command": [word.replace("$", "$$") for word in words],
        "volumes": [f"../../..:{MOUNTED}:ro"],
        "ports": [f"${{PORT:-{PORT}}}:{PORT}"],
        "shm_size": SHARED_MEMORY,
        "stop_grace_period": f"{plan.service.drain_s + AFTER_DRAIN_S}s",
    }
    if environment:
        container["environment"] = environment
    if plan.service.zero_retention:
        container["ulimits"] = {"core": 0}
    if plan.settings.gpus and LLAMA_CPP not in entrypoint[0]:
        device = {"driver": "nvidia", "count": plan.settings.gpus, "capabilities": ["gpu"]}
        container["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return container


def _resources(plan: ServingPlan) -> dict[str, Any]:
    asked = {"cpu": str(plan.settings.cpus), "memory": f"{plan.settings.memory_gib}Gi"}
    gpus = {"nvidia.com/gpu": str(plan.settings.gpus)} if plan.settings.gpus else {}
    return {"requests": {**asked, **gpus}, **({"limits": gpus} if gpus else {})}


IN_SCRIPTS = "$LAKE"
YAML_FILES = {
    "docker-compose.yaml": (compose, "Started in this directory: docker compose up. The lake, or the package, is mounted."),
    "kubernetes.yaml": (kubernetes, "kubectl apply -f kubernetes.yaml. The claim {claim} holds the lake, or the package."),
}


def write_serving_files(directory: Path, plan: ServingPlan) -> None:
    """Writes serve-vllm.sh, serve-sglang.sh, serve-llama-cpp.sh where the target has a GGUF file, the YAML files, and vLLM's
    logging for a release that retains nothing."""
    for server in plan.servers:
        words, environment = [*PROGRAMS[server], *plan.words(server, IN_SCRIPTS)], plan.environment(server, IN_SCRIPTS)
        _write_script(directory / f"serve-{server}.sh", server, words, environment, plan, plan.left_out(server))
    if plan.gguf is not None and plan.adapter is None:
        note = "llama.cpp is served without the drafter" if plan.drafter else ""
        words = [LLAMA_CPP, *plan.llama_cpp_words(IN_SCRIPTS)]
        _write_script(directory / "serve-llama-cpp.sh", "llama.cpp", words, {}, plan, note)
    if plan.service.zero_retention:
        write_json(directory / LOGGING_CONFIG, logging_config())
    for name, (make, about) in YAML_FILES.items():
        said, content = about.format(claim=plan.settings.claim), make(plan)
        text = yaml.safe_dump_all(
            content if isinstance(content, list) else [content], sort_keys=False, allow_unicode=True, width=10_000
        )
        write_text(directory / name, f"# Release {plan.version} of {plan.workload}. {said}\n{text}")


def _write_script(
    path: Path, server: str, words: list[str], environment: Mapping[str, str], plan: ServingPlan, note: str
) -> None:
    said = f"echo {shlex.quote(note)} >&2\n" if note else ""
    exports = "".join(f"export {name}={_quoted(value)}\n" for name, value in environment.items())
    limits = "ulimit -c 0   # no core dump, which would hold prompts\n" if plan.service.zero_retention else ""
    write_text(
        path,
        f"""#!/usr/bin/env bash
# Serves this release with {server}. Arguments are passed on, e.g. --port 8000.
{said}set -euo pipefail
LAKE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")/../../.." && pwd)
{exports}{limits}exec {" ".join(map(_quoted, words))} "$@"
""",
    )
    path.chmod(0o755)


def _quoted(word: str) -> str:
    """The word for the shell, which replaces $LAKE in it."""
    return '"' + word.replace('"', '\\"') + '"' if IN_SCRIPTS in word else shlex.quote(word)


PROGRAMS: dict[ServerKind, list[str]] = {"vllm": ["vllm", "serve"], "sglang": ["python", "-m", "sglang.launch_server"]}
