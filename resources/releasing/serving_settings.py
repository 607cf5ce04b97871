"""Settings of a release's serving files: images, the volume that holds the lake, what a server gets of a machine."""

from __future__ import annotations

from pydantic import Field

from model_ops.serving.service import DRAIN_S
from model_ops.settings import Settings

VLLM, VLLM_ON_CPU = "vllm/vllm-openai:v0.32.0", "vllm/vllm-openai-cpu:v0.32.0"


class Images(Settings):
    """Container images of the servers. The flags of the serving files are those of these versions."""

    vllm: str | None = Field(
        None, min_length=1, description=f"Image with vLLM. Left out: {VLLM}, or {VLLM_ON_CPU} for a server without a GPU")
    sglang: str = Field("lmsysorg/sglang:v0.5.23", min_length=1, description="Image with SGLang")
    llama_cpp: str = Field(
        "ghcr.io/ggml-org/llama.cpp:server", min_length=1, description="Image with llama-server, for the GGUF file of "
        "quantize.gguf")


class ServingSettings(Settings):
    """What the serving files of a release ask for. Whoever serves may change them there."""

    images: Images = Field(default_factory=Images, description="Container images of the servers")
    claim: str = Field(
        "lake", pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253,
        description="Kubernetes' persistent volume claim that holds the lake, or a package of the release")
    gpus: int | None = Field(
        None, ge=0, le=64, description="GPUs of a server; 0: it runs on the CPU. More than one: tensor parallel. Left out: 1; "
        "0 where `release.serve_on` is a CPU")
    cpus: int = Field(4, ge=1, le=1_024, description="CPU cores that a server requests")
    memory_gib: int = Field(32, ge=1, le=65_536, description="Host memory that a server requests, in GiB")
    replicas: int = Field(1, ge=1, le=1_024, description="Servers side by side, in Kubernetes")
    drain_s: int = Field(
        DRAIN_S, ge=0, le=86_400, description="Seconds that running requests may take after a server was told to stop")

    def on(self, place: str | None) -> ServingSettings:
        """With GPUs and image filled in. place: `release.serve_on`, such as vllm/cpu."""
        is_cpu = (place or "").partition("/")[2].strip().lower().startswith("cpu")
        gpus = self.gpus if self.gpus is not None else 0 if is_cpu else 1
        vllm = self.images.vllm or (VLLM if gpus else VLLM_ON_CPU)
        return self.model_copy(update={"gpus": gpus, "images": self.images.model_copy(update={"vllm": vllm})})
