"""Whether a server that was started with a drafter drafts: its counters moved while it was asked."""

from __future__ import annotations

from model_ops.decoding.served import ServedModel
from model_ops.evaluation.smoke.finding import Finding


def check_drafting(server: ServedModel) -> Finding:
    """Counters since the server's start. Without counters nothing is said."""
    counters = server.acceptance()
    if counters is None:
        return Finding("drafting", None, "the server counts no drafts")
    if not counters.drafts:
        return Finding("drafting", False, "it was started with a drafter and made no draft")
    return Finding("drafting", True, f"{counters.tau:.2f} tokens a forward pass over {counters.drafts:,} drafts")
