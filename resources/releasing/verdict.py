"""What is decided about a release by its gates, in one sentence.

    verdict = verdict_of(gates)      # Verdict(holds=False, sentence="1 of 6 gates is missed: recovery")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resources.releasing.gate_result import GateResult, missed


@dataclass(frozen=True)
class Verdict:
    holds: bool
    sentence: str


def verdict_of(gates: Sequence[GateResult]) -> Verdict:
    """Gates that had nothing to compare with hold, and the sentence counts them."""
    if not gates:
        return Verdict(True, "No gate was set, so nothing was checked")
    lost = [gate.name.replace("_", " ") for gate in gates if missed(gate)]
    empty = sum(gate.nothing_to_compare for gate in gates)
    if lost:
        verb = "is" if len(lost) == 1 else "are"
        return Verdict(False, f"{len(lost)} of {len(gates)} gates {verb} missed: {', '.join(lost)}")
    said = f"; {empty} had nothing to compare with" if empty else ""
    return Verdict(True, f"All {len(gates)} gates hold{said}" if len(gates) > 1 else f"The only gate holds{said}")
