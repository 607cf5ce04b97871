"""The recipe's settings of a release: gates (on by default), how drafting is decided, serving files, and the watch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from model_ops.drafting import P99_ABOVE
from model_ops.evaluation import LEAST_GAIN
from model_ops.jobs import Settings
from model_ops.serving import DRAIN_S

Share = Annotated[float, Field(gt=0, le=1)]
Fall = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Gates(Settings):
    """Bounds that a release must meet before anyone may approve it. null switches a gate off."""

    recovery: Share | None = Field(
        0.99,
        description="Lowest recovery of the served model, exp(reference loss - served loss) per answer token. A value beyond "
        "1 by more than its noise fails as well. With 4-bit weights the default is 0.98. null: no gate",
    )
    recovery_long_context: Share | None = Field(
        0.98,
        description="The same on test rows that are joined to long contexts; too few rows to fill any are "
        "nothing to compare. null: no gate",
    )
    accuracy_kept: Share | None = Field(
        0.99,
        description="Lowest share of its unquantized form's score that the served model keeps, mean of the evaluation suites. "
        "It is missed where the whole 95 % interval is below. With 4-bit weights the default is 0.98. null: no gate",
    )
    accuracy_kept_each: Share | None = Field(0.95, description="The same of each suite by itself. null: no gate")
    gain_over_base: NotNegative | None = Field(
        LEAST_GAIN,
        description="Where a model is trained: least by which the served model must be better than the base model by one "
        "measure: the score of a suite, the share of passed answers (`rft`), held-out pairs or the judge (`preference`), or "
        "held-out loss in nats per answer token (lower end of the 95 % interval). null: no gate",
    )
    loss_above_base: NotNegative | None = Field(
        0.02,
        description="Most nats per answer token by which the served model's held-out loss may exceed the base "
        "model's (upper end of the 95 % interval). null: no gate",
    )
    loss_above_champion: NotNegative | None = Field(
        0.02,
        description="The same against the model that the endpoint serves now. It holds while there is no other "
        "one. null: no gate",
    )
    loss_above_teacher: NotNegative | None = Field(
        0.1,
        description="The same of the student against its teacher, before quantization, if the student is served. null: no gate",
    )
    accuracy_below_base: Fall | None = Field(
        0.1,
        description="Most share of an evaluation suite's score that the served model may lose against the "
        "base model (lower end of the 95 % interval), for each suite that is asked. null: no gate",
    )
    accuracy_below_champion: Fall | None = Field(
        0.1, description="The same against the model that the endpoint serves now. null: no gate"
    )
    preference_accuracy: Fall | None = Field(
        0.5,
        description="With `preference`: lowest share of held-out pairs whose chosen answer gained more probability than the "
        "rejected one, against the model before preference training (lower end of the 95 % interval). null: no gate",
    )
    win_rate: Fall | None = Field(
        0.5,
        description="With `preference` and `evaluation.tasks.judge`: lowest share of held-out prompts at which the judge "
        "prefers the served model's answer to that of the model before preference training, a tie as half. It is missed where "
        "the whole 95 % interval is below. null: no gate",
    )
    length_ratio: float | None = Field(
        1.5,
        ge=1,
        description="With `preference`: how many times longer or shorter the served model's answers may be than before "
        "preference training, in tokens on average. null: no gate",
    )
    divergence_from_parent: Positive | None = Field(
        0.5,
        description="With `preference`: most nats per token by which the served model may have moved from the model before "
        "preference training, KL on its own sampled answers (upper end of the 95 % interval). null: no gate",
    )
    rft_gain: float | None = Field(
        0.0,
        ge=-1,
        le=1,
        description="With `rft`: least by which the share of held-out prompts whose answer passes its row's own verifier must "
        "have risen against the model before that training (lower end of the 95 % interval). null: no gate",
    )
    acceptance_length: float | None = Field(
        1.2,
        ge=1,
        description="Lowest acceptance length (lower end of the 95 % interval), sampled as the traffic is, at the "
        "recipe's num_speculative_tokens. null: no gate",
    )
    acceptance_gain: float | None = Field(
        0.0,
        ge=-1,
        description="Least relative gain of the drafter's acceptance length over the better of n-gram and suffix "
        "lookup, which need no training, at their own best draft lengths (lower end of the 95 % interval). null: no gate",
    )
    acceptance_below_champion: Fall | None = Field(
        0.05,
        description="Most share of the acceptance length that the drafter may lose against the drafter that "
        "the endpoint serves now, both on the new target and the same prompts (lower end of the 95 % interval). It holds while "
        "there is no other one. null: no gate",
    )
    served_agreement: Share | None = Field(
        0.95,
        description="Where `evaluation.server` names a server: lowest share of its greedy tokens that the "
        "project's own layers rank first, up to ties, with the drafter if the server runs it. A server that does not load the "
        "model misses it. null: no gate",
    )
    served_distance: Positive | None = Field(
        0.25,
        description="Where `evaluation.server` names a server: most nats per answer token by which its "
        "log-probabilities differ from those of the project's own layers, on average. A server that does not load the model "
        "misses it. null: no gate",
    )
    erased_rows: int | None = Field(
        None,
        ge=0,
        description="Most rows that the served weights may have learnt and that `millrace forget` erased since; "
        "looked at again at every approval and whenever the endpoint moves. 0 refuses tainted releases. null: no gate",
    )

    def for_weights_in(self, directory: Path) -> Gates:
        """As `for_weights_of`, of a model's directory."""
        return self.for_weights_of(served_bits(directory))

    def for_weights_of(self, bits: int) -> Gates:
        """With the bounds of these weights where the recipe names none: rounding to 4 bits costs more than rounding to 8."""
        if bits > FEW_BITS:
            return self
        left_out = BY_FEW_BITS.keys() - self.model_fields_set
        return self.model_copy(update={name: BY_FEW_BITS[name] for name in left_out})


FEW_BITS, UNQUANTIZED = 4, 16
BY_FEW_BITS = {"recovery": 0.98, "accuracy_kept": 0.98}
"""Bounds of weights of FEW_BITS bits or fewer."""


def served_bits(directory: Path) -> int:
    """The fewest bits of a layer's weights, as `quantization_config` names them; 16 for float weights."""
    quantization = json.loads((directory / "config.json").read_text()).get("quantization_config") or {}
    groups = quantization.get("config_groups", {}).values()
    return min((int(group["weights"]["num_bits"]) for group in groups if group.get("weights")), default=UNQUANTIZED)


class DraftingSettings(Settings):
    """What the release's serve scripts draft with."""

    choose: Literal["measured", "drafter", "none"] = Field(
        "measured",
        description="measured: what was fastest in the server of `evaluation.server`, or, where none is named, the "
        "drafter if it drafts better than the n-gram lookup. drafter: the trained drafter. none: no drafting",
    )
    concurrency: list[Annotated[int, Field(ge=1, le=256)]] | None = Field(
        None,
        min_length=1,
        description="Requests at a time of the endpoint, which decide; each must be among "
        "`evaluation.server.concurrencies`. Left out: all of these",
    )
    p99_above: Annotated[float, Field(ge=0, le=10)] = Field(
        P99_ABOVE,
        description="Most share by which the p99 latency of a drafting (of few requests, a lower "
        "quantile) may exceed that without drafting, at each concurrency",
    )


VLLM, VLLM_ON_CPU = "vllm/vllm-openai:v0.32.0", "vllm/vllm-openai-cpu:v0.32.0"


class Images(Settings):
    """Container images of the servers. The flags of the serving files are those of these versions."""

    vllm: str | None = Field(
        None, min_length=1, description=f"Image with vLLM. Left out: {VLLM}, or {VLLM_ON_CPU} for a server without a GPU"
    )
    sglang: str = Field("lmsysorg/sglang:v0.5.23", min_length=1, description="Image with SGLang")
    llama_cpp: str = Field(
        "ghcr.io/ggml-org/llama.cpp:server",
        min_length=1,
        description="Image with llama-server, for the GGUF file of quantize.gguf",
    )


class ServingSettings(Settings):
    """What the serving files of a release ask for. Whoever serves may change them there."""

    images: Images = Field(default_factory=Images, description="Container images of the servers")
    claim: str = Field(
        "lake",
        pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
        max_length=253,
        description="Kubernetes' persistent volume claim that holds the lake, or a package of the release",
    )
    gpus: Annotated[int, Field(ge=0, le=64)] | None = Field(
        None,
        description="GPUs of a server; 0: it runs on the CPU. More than one: tensor parallel. Left out: 1; "
        "0 where `release.serve_on` is a CPU",
    )
    cpus: int = Field(4, ge=1, le=1_024, description="CPU cores that a server requests")
    memory_gib: int = Field(32, ge=1, le=65_536, description="Host memory that a server requests, in GiB")
    replicas: int = Field(1, ge=1, le=1_024, description="Servers side by side, in Kubernetes")
    drain_s: int = Field(
        DRAIN_S, ge=0, le=86_400, description="Seconds that running requests may take after a server was told to stop"
    )

    def on(self, place: str | None) -> ServingSettings:
        """With GPUs and image filled in. place: `release.serve_on`, such as vllm/cpu."""
        is_cpu = (place or "").partition("/")[2].strip().lower().startswith("cpu")
        gpus = self.gpus if self.gpus is not None else 0 if is_cpu else 1
        vllm = self.images.vllm or (VLLM if gpus else VLLM_ON_CPU)
        return self.model_copy(update={"gpus": gpus, "images": self.images.model_copy(update={"vllm": vllm})})


class WatchSettings(Settings):
    """What is compared after a promotion, and how often a good release may be rolled back by mistake."""

    hours: float = Field(24, ge=0.5, le=720, description="Hours after a promotion in which the new champion is watched")
    false_alarm: Annotated[float, Field(gt=0, le=0.2)] = Field(
        0.01,
        description="Largest probability that a promotion of a release that is as good as it should be is "
        "rolled back, over all looks and signals together",
    )
    acceptance_drop: float = Field(
        0.1, gt=0, lt=1, description="Tolerated fall of the served acceptance length, as a share of what it should be"
    )
    bad_answers_rise: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.03,
        description="Tolerated rise of the share of requests without an answer, and of the mean share of a "
        "session's answers that are errors or empty, cut off or broken, refused, or rated badly",
    )
    reference_days: Annotated[int, Field(ge=1, le=60)] = Field(
        7,
        description="Days before the promotion from which the served windows and sessions of the champion "
        "before it are taken, to say what should be",
    )
