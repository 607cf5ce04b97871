"""Settings of steps that a student answers by itself. Importing this file imports no torch."""

from pydantic import Field

from model_ops.jobs import Settings


class OnPolicySettings(Settings):
    """Steps in which the student answers by itself and the teacher says at each of its tokens what it would have said."""

    share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of the later steps that the student answers (GKD's lambda). Left out: 1 with "
        "preset thorough, where the student trains in one process with the teacher online and the same tokenizer; 0 otherwise",
    )
    after: float = Field(0.5, ge=0, lt=1, description="Share of the run before the first such step: off-policy, then on-policy")
    beta: float = Field(1.0, ge=0, le=1, description="The divergence at sampled tokens, as `student.beta`: 1 is reverse KL")
    temperature: float = Field(1.0, gt=0, le=100, description="Temperature at which the student samples")
    max_new_tokens: int = Field(128, ge=1, le=1_000_000, description="Longest sampled answer")
    batch_size: int = Field(64, ge=1, le=65_536, description="Prompts that are answered at once")
