"""The order of a recipe's models: which model each enabled stage starts from, and which one is served.

    policy = ModelPolicy(off=frozenset({"student"}))
    policy.source_of("quantized_model")        # "sft_model"
    policy.served                              # "quantized_model"

A stage that a recipe switches off is not in that recipe's graph; the next stage starts from the previous one.
resources/stages/table.py has the stages in order."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from resources.stages.table import STAGES, Stage, model_chain, models_before, stage


@dataclass(frozen=True)
class ModelPolicy:
    """The order of a recipe's models, and what the rules of the table (`Stage.reads`) ask about a recipe."""

    off: frozenset[str] = frozenset()
    """The switches (`Stage.switch`) that the recipe turns off."""
    drafter_from: str | None = None
    """The model that the drafter begins from, besides its target; None if it begins untrained or from a directory. If this
    model is optional (the student), it is not on the way to the served model: it is trained to draft for its teacher."""
    taught: frozenset[str] = frozenset()
    """Stages that learn a teacher's answers (teacher_answers) instead of the logged ones."""
    taught_by_itself: bool = False
    """Whether these answers are the fine-tuned model's own, which the student learns."""
    trained_on: Mapping[str, str] = field(default_factory=dict)
    """The dataset that a stage names, by stage: of `datasets.named`, or prompts that its model answers."""
    rowless: frozenset[str] = frozenset()
    """Stages whose settings read no rows of a dataset."""
    graded_by_reward_model: frozenset[str] = frozenset()
    """Stages whose sampled answers the reward model grades."""

    @property
    def stages(self) -> list[str]:
        """The models from base to served; each starts from the previous one."""
        return [each.name for each in self.models if each.name != self.drafting_model]

    @property
    def models(self) -> list[Stage]:
        """The models of the chain that the recipe makes, with one that is trained only to draft."""
        return [each for each in model_chain() if each.switch not in self.off]

    @property
    def disabled(self) -> list[str]:
        """Stages that are not in this recipe's graph."""
        return [each.name for each in STAGES if each.switch and each.switch in self.off]

    @property
    def speculator(self) -> bool:
        """Whether the recipe has a drafter."""
        return stage("speculator").switch not in self.off

    @property
    def drafting_model(self) -> str | None:
        """A model that is trained only to draft; it is not on the way to the served model."""
        begun = stage(self.drafter_from) if self.drafter_from else None
        return begun.name if begun and begun.switch else None

    def rows_of(self, name: str) -> str:
        """The dataset that a stage is trained on."""
        if name in self.taught and "teacher" not in self.off:
            return "teacher_answers"
        return self.trained_on.get(name, stage(name).rows)

    @property
    def named_datasets(self) -> list[str]:
        """Datasets of `datasets.named` that an enabled stage is trained on."""
        enabled = {name for name in self.trained_on if stage(name).switch not in self.off and stage(name).rows == "sft_dataset"}
        return sorted({self.rows_of(name) for name in enabled} - {"teacher_answers", "rl_prompts"})

    def source_of(self, name: str) -> str:
        """The model that a stage starts from: the nearest one before it."""
        before = [each for each in models_before(name) if each in self.stages]
        if not before:
            raise ValueError(f"{name} starts from no other model")
        return before[-1]

    def parent_role(self, name: str) -> str:
        """The role of the model that a stage starts from."""
        return stage(self.source_of(name)).role

    @property
    def compared_losses(self) -> list[tuple[str, str]]:
        """Roles whose held-out losses the evaluation compares: a model, and the one that it started from."""
        return [(each.role, self.parent_role(each.name)) for each in self.models if each.compares_loss]

    @property
    def measured_rows(self) -> dict[str, Stage]:
        """Inputs of the evaluation with held-out rows of one training -> its stage."""
        return {each.measured_as: each for each in self.models if each.measured_as and each.rows not in self.disabled}

    @property
    def served(self) -> str:
        """The model whose weights go to the endpoint: the drafter's target."""
        return self.stages[-1]

    @property
    def reference(self) -> str:
        """The model that recovery is relative to: the served model before quantization."""
        return self.source_of(self.served) if stage(self.served).operation == "quantize" else self.served
