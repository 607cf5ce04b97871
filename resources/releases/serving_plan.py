"""The one description of how a release is served, from which every serving file is written.

    plan = ServingPlan("tutor", "3f2a91c0d4e5", "models/...", "models/...", DrafterServing(...), with_drafter(3), Service(...))
    plan.words("vllm", "$LAKE")             # what follows `vllm serve`, with the lake at $LAKE
    plan.environment("vllm", "/mnt/lake")

Paths are relative to the lake; each file puts its own place of the lake before them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from model_ops.drafting import Drafting
from model_ops.serving import ServerKind, Service, lora_flags, runs_drafter, service_environment, serving_of, words_of
from model_ops.speculators import DrafterServing
from resources.releases.settings import ServingSettings

PROGRAMS: dict[ServerKind, list[str]] = {"vllm": ["vllm", "serve"], "sglang": ["python", "-m", "sglang.launch_server"]}
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
    def served_name(self) -> str:
        """What a server calls that model: requests name an adapter by the workload, so its base has another name."""
        return f"{self.workload}-base" if self.adapter else self.workload

    @property
    def directory(self) -> str:
        """The release's directory in the lake."""
        return f"releases/{self.workload}/{self.version}"

    def words(self, server: ServerKind, lake: str) -> list[str]:
        """What follows the program; the target comes first. lake: where the server finds the lake."""
        drafter = f"{lake}/{self.drafter}" if self.drafter else None
        words = words_of(
            server,
            f"{lake}/{self.model}",
            self.served_name,
            drafter,
            self.serving,
            self.drafting.num_speculative_tokens,
            self.drafting,
            service=self.service,
        )
        if self.adapter is not None:
            place = f"{lake}/{self.adapter}"
            words += [
                "--tokenizer",
                place,
                *lora_flags.lora_words(self.rank, 1),
                *lora_flags.module_words({self.workload: place}),
            ]
        if server == "vllm":
            words += ["--generation-config", f"{lake}/{self.directory}"] if self.has_generation_config else []
            words += self.tools
        if self.settings.gpus > 1:
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
