"""The recipe's `release.gates`: bounds of the gates, on by default."""

from __future__ import annotations

from pydantic import Field

from model_ops.settings import Settings


class Gates(Settings):
    """Bounds that a release must meet before anyone may approve it. null switches a gate off."""

    recovery: float | None = Field(
        0.99, gt=0, le=1, description="Lowest recovery of the served model, exp(reference loss - served loss) per answer "
        "token. A value beyond 1 by more than its noise fails as well. With 4-bit weights the default is 0.98. null: "
        "no gate",
    )
    recovery_long_context: float | None = Field(
        0.98, gt=0, le=1, description="The same on test rows that are joined to long contexts; too few rows to fill any are "
        "nothing to compare. null: no gate")
    accuracy_kept: float | None = Field(
        0.99, gt=0, le=1, description="Lowest share of its unquantized form's score that the served model keeps, mean of the "
        "evaluation suites. It is missed where the whole 95 % interval is below. With 4-bit weights the default is 0.98. "
        "null: no gate")
    accuracy_kept_each: float | None = Field(
        0.95, gt=0, le=1, description="The same of each suite by itself. null: no gate")
    loss_above_base: float | None = Field(
        0.02, ge=0, description="Most nats per answer token by which the served model's held-out loss may exceed the base "
        "model's (upper end of the 95 % interval). null: no gate")
    loss_above_champion: float | None = Field(
        0.02, ge=0, description="The same against the model that the endpoint serves now. It holds while there is no other "
        "one. null: no gate")
    loss_above_teacher: float | None = Field(
        0.1, ge=0, description="The same of the student against its teacher, before quantization, if the student is served. "
        "null: no gate")
    accuracy_below_base: float | None = Field(
        0.1, ge=0, le=1, description="Most share of an evaluation suite's score that the served model may lose against the "
        "base model (lower end of the 95 % interval), for each suite that is asked. null: no gate")
    accuracy_below_champion: float | None = Field(
        0.1, ge=0, le=1, description="The same against the model that the endpoint serves now. null: no gate")
    acceptance_length: float | None = Field(
        1.2, ge=1, description="Lowest acceptance length (lower end of the 95 % interval), sampled as the traffic is, at the "
        "recipe's num_speculative_tokens. null: no gate"
    )
    acceptance_gain: float | None = Field(
        0.0, ge=-1, description="Least relative gain of the drafter's acceptance length over the better of n-gram and suffix "
        "lookup, which need no training, at their own best draft lengths (lower end of the 95 % interval). null: no gate")
    acceptance_below_champion: float | None = Field(
        0.05, ge=0, le=1, description="Most share of the acceptance length that the drafter may lose against the drafter that "
        "the endpoint serves now, both on the new target and the same prompts (lower end of the 95 % interval). It holds while "
        "there is no other one. null: no gate")
    served_agreement: float | None = Field(
        0.95, gt=0, le=1, description="Where `evaluation.server` names a server: lowest share of its greedy tokens that the "
        "project's own layers rank first, up to ties, with the drafter if the server runs it. A server that does not load the "
        "model misses it. null: no gate")
    served_distance: float | None = Field(
        0.25, gt=0, description="Where `evaluation.server` names a server: most nats per answer token by which its "
        "log-probabilities differ from those of the project's own layers, on average. A server that does not load the model "
        "misses it. null: no gate")
    erased_rows: int | None = Field(
        None, ge=0, description="Most rows that the served weights may have learnt and that `millrace forget` erased since; "
        "looked at again at every approval and whenever the endpoint moves. 0 refuses tainted releases. null: no gate")

    def for_weights_of(self, bits: int) -> Gates:
        """With the bounds of these weights where the recipe names none: rounding to 4 bits costs more than rounding to 8."""
        if bits > FEW_BITS:
            return self
        left_out = BY_FEW_BITS.keys() - self.model_fields_set
        return self.model_copy(update={name: BY_FEW_BITS[name] for name in left_out})


FEW_BITS = 4
BY_FEW_BITS = {"recovery": 0.98, "accuracy_kept": 0.98}
"""Bounds of weights of FEW_BITS bits or fewer."""
