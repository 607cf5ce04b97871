"""What is decided about a release by its gates, in one sentence.

    verdict = verdict_of(gates)      # Verdict(holds=False, sentence="1 of 6 gates is missed: recovery")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model_ops.wording import counted
from resources.releasing.gate_result import GateResult, missed


@dataclass(frozen=True)
class Verdict:
    holds: bool
    sentence: str


def verdict_of(gates: Sequence[GateResult]) -> Verdict:
    """Gates that have nothing to compare with are not counted among those that hold: the sentence names them."""
    if not gates:
        return Verdict(True, "No gate was set, so nothing was checked")
    lost, empty = ([gate.name.replace("_", " ") for gate in gates if chosen(gate)]
                   for chosen in (missed, lambda gate: gate.nothing_to_compare))
    count = len(gates) - len(empty)
    without = f"; nothing to compare with yet: {', '.join(empty)}" if empty else ""
    if lost:
        verb = "is" if len(lost) == 1 else "are"
        return Verdict(False, f"{len(lost)} of {counted(count, 'gate')} {verb} missed: {', '.join(lost)}{without}")
    if not count:
        return Verdict(True, f"No gate was checked{without}")
    return Verdict(True, (f"All {count} gates hold" if count > 1 else "The gate holds") + without)
