"""Settings of operation `distill`, and the number of a student's layers. Importing this file imports no torch."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from model_ops.files import LocalPath
from model_ops.objectives import OnPolicySettings
from model_ops.pruning import refuse_unusable_base
from model_ops.training import TrainingSettings

DEFAULT_LAYERS = 0.7
"""`layers` where a recipe names neither layers nor a base."""


class StudentSettings(TrainingSettings):
    """A smaller student, distilled from its teacher: layers of the teacher, or a model of its own (`base`)."""

    enabled: bool = Field(True, description="false: no student is made, and the next stage starts from the fine-tuned model")
    dataset: str | None = Field(
        None,
        description="Name of the dataset under `datasets.named` that is trained on. Left out: `datasets.sft`, or the "
        "teacher's answers",
    )
    base: Annotated[str, LocalPath("model", "the directory of a model", check=refuse_unusable_base)] | None = Field(
        None,
        description="Directory of a smaller model that the student begins as, with the teacher's tokenizer and chat "
        "template. Another one needs `label_weight: 1`. Left out: the student begins as the teacher with fewer layers",
    )
    layers: float | None = Field(
        None,
        gt=0,
        le=1_024,
        description="Below 1: share of the teacher's layers to keep. From 1: number of layers to keep, "
        "at most the teacher's. Left out: 0.7; not with `base`",
    )
    mlp_width: float | None = Field(
        None,
        gt=0,
        le=1_048_576,
        description="Below 1: share of the neurons of each MLP to keep, in multiples of up to 128. "
        "From 1: their number. Left out: all",
    )
    heads: float | None = Field(
        None,
        gt=0,
        le=4_096,
        description="Below 1: share of the attention heads to keep, in whole key-value groups. From 1: "
        "number of query heads. Left out: all",
    )
    hidden_size: float | None = Field(
        None,
        gt=0,
        le=1_048_576,
        description="Below 1: share of the channels of the residual stream to keep, in multiples of "
        "up to 128. From 1: their number. Left out: all",
    )
    temperature: float = Field(1.0, gt=0, le=100, description="Temperature of both distributions in the divergence")
    label_weight: float = Field(
        0.0, ge=0, le=1, description="Share of plain cross-entropy in the loss; 1 is supervised fine-tuning"
    )
    choose_layers: Literal["importance", "even"] | None = Field(
        None,
        description="importance: layers are removed one by one, each time the one whose removal costs least on held-out "
        "rows. even: evenly spaced layers, with the first and the last. Left out: importance; even on a mesh",
    )
    beta: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Divergence from the teacher, as in GKD: 0 is forward KL, 1 reverse KL, between them a "
        "generalised Jensen-Shannon divergence",
    )
    teacher: Literal["online", "cache", "answers"] = Field(
        "online",
        description="online: the teacher computes with each batch. cache: it computes once, before the training, and "
        "`top_k` of its tokens at every target are kept on disk until the stage ends: faster where rows are read more "
        "than once, and the teacher's memory is free while the student trains. "
        "answers: the log-probabilities that the recipe's teacher at an endpoint gave with its answers (`teacher.logprobs`)",
    )
    top_k: int = Field(
        32,
        ge=1,
        le=4_096,
        description="teacher: cache. Tokens kept at a target, 4 or 6 bytes each. At `beta` 0 a quarter of "
        "them are drawn from all but the likeliest; at any other `beta` all but the likeliest are one bucket",
    )
    on_policy: OnPolicySettings = Field(
        default_factory=OnPolicySettings, description="Steps that the student answers by itself. Left out: by preset"
    )

    ON_POLICY_SHARES: ClassVar[dict[str, float]] = {"quick": 0.0, "balanced": 0.0, "thorough": 1.0}
    """`on_policy.share` by preset."""

    STAY_OPEN: ClassVar[dict[str, str]] = {
        **TrainingSettings.STAY_OPEN,
        "dataset": "`datasets.sft`, or the teacher's answers",
        "base": "the student begins as a part of the teacher",
        "mlp_width": "the teacher's",
        "heads": "the teacher's",
        "hidden_size": "the teacher's",
        "layers": "a base has its own",
        "choose_layers": "a base keeps all of its own",
    }

    @model_validator(mode="after")
    def _keys_agree(self):
        for sentence in self._contradictions():
            raise ValueError(sentence)
        return self

    def _contradictions(self) -> Iterator[str]:
        """Sentences about keys that contradict each other, the most telling one first."""
        alone, samples = self.mesh.alone, bool(self.on_policy.share)
        given = "layers" if self.layers is not None else "choose_layers"
        if self.base is not None and getattr(self, given) is not None:
            yield (
                f"{given} and base are both given, and a student with a base keeps all layers of it: leave {given} or base out"
            )
        if self.layers is not None and self.layers >= 1 and self.layers != int(self.layers):
            yield f"layers is {self.layers:g}; it must be a share below 1 or a whole number of layers"
        for key in ("mlp_width", "heads", "hidden_size"):
            wanted = getattr(self, key)
            if wanted is not None and self.base is not None:
                yield f"{key} and base are both given, and a student with a base keeps its widths: leave {key} or base out"
            if wanted is not None and wanted >= 1 and wanted != int(wanted):
                yield f"{key} is {wanted:g}; it must be a share below 1 or a whole number"
            if wanted is not None and not alone:
                yield f"{key} is given, and what matters in a layer is measured in one process: leave mesh or {key} out"
        if samples and not alone:
            yield (
                "on_policy.share is above 0, and a student that samples trains in one process: leave mesh out, or set "
                "on_policy.share to 0"
            )
        if self.choose_layers == "importance" and not alone:
            yield (
                "choose_layers is importance, which is measured in one process: leave mesh out, or set choose_layers to even"
            )
        if self.teacher != "online" and not alone:
            yield (
                f"teacher is {self.teacher}, which is written and read by one process: leave mesh out, or set teacher to online"
            )
        if samples and self.label_weight == 1:
            yield "label_weight is 1, so no teacher is asked: set on_policy.share to 0, or label_weight below 1"
        for refused, key, remedy in (
            (self.temperature != 1, "temperature", "set it to 1"),
            (samples, "on_policy.share", "set it to 0, or teacher to online"),
            (self.overflow == "split", "overflow", "set it to truncate or drop"),
        ):
            if self.teacher == "answers" and refused:
                yield (
                    f"{key} does not work with teacher: answers, whose log-probabilities are those of whole answers at "
                    f"temperature 1: {remedy}"
                )

    def resolved(self):
        """The settings with every missing value filled, from the mesh and the preset."""
        update: dict[str, Any] = {}
        if self.base is None:
            update = {
                "choose_layers": self.choose_layers or ("importance" if self.mesh.alone else "even"),
                "layers": DEFAULT_LAYERS if self.layers is None else self.layers,
            }
        if self.on_policy.share is None:
            at_hand = self.mesh.alone and self.teacher == "online" and self.label_weight < 1
            share = self.ON_POLICY_SHARES[self.preset] if at_hand else 0.0
            update["on_policy"] = self.on_policy.model_copy(update={"share": share})
        return super(StudentSettings, self.model_copy(update=update)).resolved()

    @property
    def drawn_tokens(self) -> int:
        """How many of the cached tokens are drawn: a quarter, where the divergence can be estimated from them."""
        return self.top_k // 4 if self.beta == 0 else 0

    @property
    def asked_layers(self) -> float:
        """`layers`, or its default."""
        return DEFAULT_LAYERS if self.layers is None else self.layers

    def depth(self, teacher_layers: int) -> int:
        """Number of layers of a student without a base. Raises ValueError, with the remedy after a semicolon, if the teacher
        has fewer."""
        wanted = self.asked_layers
        count = max(1, round(teacher_layers * wanted)) if wanted < 1 else int(wanted)
        if count > teacher_layers:
            raise ValueError(
                f"the student cannot keep {count} layers, its teacher has {teacher_layers}; set student.layers to "
                f"at most {teacher_layers}, or to a share below 1"
            )
        return count
