"""Settings of TRL's SFTTrainer that the comparison tries: all that its documentation names for speed and that a CPU can run.

Sources: TRL 1.16's "Reducing Memory Usage" and SFTConfig, transformers' TrainingArguments. Left out, with the reason:
loss_type "dft" has another objective, "chunked_nll" is an alias of "nll" (both in 1.16 compute chunks of the logits); Liger and
FlashAttention kernels need a GPU; bfloat16 weights and packing "wrapped" train something else; activation offloading moves
memory from a GPU to the CPU. Dataset workers would take the trainer's cores, and the rows are tokenized before.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class TrlSettings:
    """rows: packed rows (layout "packed") or documents (else) of one forward pass. process: environment of the process: "ours"
    has the variables and thresholds that this project's trainer sets, "defaults" those of torch and glibc."""

    layout: Literal["packed", "padded", "padding_free"]
    rows: int
    checkpointing: bool = False
    compiled: bool = False
    process: Literal["ours", "defaults"] = "ours"

    def passes(self, rows_per_step: int, packed_rows_per_step: int) -> int:
        """Forward passes that one step accumulates. Raises ValueError where they do not make whole steps."""
        in_all = packed_rows_per_step if self.layout == "packed" else rows_per_step
        if in_all % self.rows:
            raise ValueError(f"{self.rows} rows a pass do not divide {in_all} rows a step")
        return in_all // self.rows

    def named(self) -> dict[str, Any]:
        return asdict(self)


FIRST = (
    *(TrlSettings("packed", rows) for rows in (2, 1)),
    *(TrlSettings("padded", rows) for rows in (20, 10, 5)),
    *(TrlSettings("padding_free", rows) for rows in (5, 2, 1)),
    *(TrlSettings(layout, 1, checkpointing=True) for layout in ("packed", "padding_free")),
)
"""Tried first. "padded" groups documents by length; "padding_free" joins documents without packing them to a length."""


def refinements(best: TrlSettings) -> tuple[TrlSettings, ...]:
    """Tried after FIRST: variants of the best by processor time."""
    switched = replace(best, checkpointing=not best.checkpointing)
    return (switched, replace(best, process="defaults"), replace(best, compiled=True))
