"""Everything that a server is asked before it takes traffic.

    findings = run_smoke_set(server, prompts, schema_rows, scores)
    failed(findings)                    # one sentence each; a check that could not be made is no failure

Takes a few dozen short requests. A server that was started with a drafter must draft: its counters move while it is asked.
Importing this file imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from model_ops.answering import ServedModel
from model_ops.evaluation.smoke.answers import SmokeResult, ask_prompts, check_long_prompt, check_stop
from model_ops.evaluation.smoke.asking import SmokeClient, SmokePrompt
from model_ops.evaluation.smoke.constraints import check_constraints
from model_ops.evaluation.smoke.text import Scores, compare_text
from model_ops.jobs import ModelError

BUILT_IN = SmokePrompt("built-in", [{"role": "user", "content": "Write one sentence about the sea."}])


@dataclass(frozen=True)
class TriedServer:
    """A server under test."""

    url: str
    """Address of the server."""
    model: str
    """Name of the model in requests."""
    kind: Literal["vllm", "sglang", "transformers"] = "vllm"
    """The server's program; that of transformers takes only what OpenAI's API defines."""
    drafts: bool = False
    """Whether it was started with a drafter."""
    timeout_s: float = 300.0
    """Timeout of one request."""


def run_smoke_set(
    server: TriedServer,
    prompts: Sequence[SmokePrompt],
    schema_rows: Sequence[SmokePrompt],
    scores: Scores | None,
    check: Callable[[], None] = lambda: None,
) -> list[SmokeResult]:
    """prompts: held-out ones, asked after a built-in one. schema_rows: prompts whose request has a json_schema. scores:
    compares answers with the target's own layers; None: they are not compared. check: called between checks, and may raise.

    Ends early if the server gives no answer at all.
    """
    asking = SmokeClient(server.url, server.model, server.timeout_s, plain=server.kind == "transformers")
    try:
        findings, answers = ask_prompts(asking, [BUILT_IN, *prompts])
        if not findings[0].passed:
            return findings
        check()
        findings.append(check_stop(asking, answers))
        for finding in check_constraints(asking, schema_rows, is_vllm=server.kind == "vllm"):
            findings.append(finding)
            check()
        with ServedModel(server.url, server.model, timeout_s=server.timeout_s, through_proxy=False) as client:
            findings.append(check_long_prompt(asking, _longest(client), answers))
            if server.drafts:
                findings.append(check_drafting(client))
        check()
        if scores is not None:
            findings += compare_text(asking, answers, scores)
        return findings
    finally:
        asking.close()


def failed(findings: Sequence[SmokeResult]) -> list[str]:
    """One sentence per failed check."""
    return [f"{finding.name}: {finding.said}" for finding in findings if finding.passed is False]


def _longest(client: ServedModel) -> int | None:
    try:
        return client.longest
    except ModelError:
        return None


def check_drafting(server: ServedModel) -> SmokeResult:
    """Counters since the server's start. Without counters nothing is said."""
    counters = server.acceptance()
    if counters is None:
        return SmokeResult("drafting", None, "the server counts no drafts")
    if not counters.drafts:
        return SmokeResult("drafting", False, "it was started with a drafter and made no draft")
    return SmokeResult("drafting", True, f"{counters.tau:.2f} tokens a forward pass over {counters.drafts:,} drafts")
