"""Everything that a server is asked before it takes traffic: a few dozen short requests. Imports no torch.

findings = run_smoke_set(server, prompts, schema_rows, scores)
failures(findings)                  # one sentence each; a check that could not be made is no failure"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from model_ops.completions import ServedModel
from model_ops.evaluation.measurement import TIE_NATS
from model_ops.evaluation.smoke.answers import (
    NoAnswerError,
    NoParser,
    SmokeAnswer,
    SmokeClient,
    SmokePrompt,
    SmokeResult,
    TooLong,
    ask_prompts,
    check_long_prompt,
    check_stop,
)
from model_ops.jobs import ModelError, counted
from model_ops.tasks import JsonItem, score_json

TRIES, WHOLE, TOKENS, ROW_TOKENS = 4, 2, 192, 512
VARIED = {"temperature": 1.0, "frequency_penalty": 2.0}
"""Penalty of further tries: a model that was not trained on JSON writes white space up to its limit; a penalty stops that."""
SCHEMA = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}, "count": {"enum": [1, 2, 3]}},
    "required": ["answer", "count"], "additionalProperties": False}  # fmt: skip
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_colour",
        "description": "Sets the colour of a lamp.",
        "strict": True,
        "parameters": {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"],
            "additionalProperties": False},
    },
}  # fmt: skip
PATTERN = "(yes|no)-[0-9]{2}"
GRAMMAR = 'root ::= pair "." \npair ::= "left" | "right"\n'
IN_GRAMMAR = ("left.", "right.")
ASKS_JSON = SmokePrompt(
    "built-in",
    [
        {
            "role": "user",
            "content": "Is three more than two? Answer with a JSON object: answer is yes or no, count is 1, 2 or 3.",
        }
    ],
)
ASKS_TOOL = SmokePrompt("built-in", [{"role": "user", "content": "Make the lamp red."}])

Judge = Callable[[dict[str, Any]], bool]
"""Whether a choice keeps to the constraint."""


def check_constraints(asking: SmokeClient, rows: Sequence[SmokePrompt], is_vllm: bool = True) -> Iterator[SmokeResult]:
    """One finding per kind of constraint. is_vllm: whether the server knows vLLM's fields of a request."""
    if asking.plain:
        yield SmokeResult("constraints", None, "this server does not enforce structured outputs")
        return
    yield _check(
        asking, "json schema", ASKS_JSON, lambda choice: follows(SCHEMA, _text(choice)), response_format=schema_format(SCHEMA)
    )
    if rows:
        yield _rows(asking, rows)
    if not is_vllm:
        yield SmokeResult("tool call, regex, grammar", None, "only vLLM is asked for them")
        return
    yield _check(
        asking,
        "tool call",
        ASKS_TOOL,
        calls_tool,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": TOOL["function"]["name"]}},
    )
    yield _check(
        asking,
        "regex",
        ASKS_JSON,
        lambda choice: re.fullmatch(PATTERN, _text(choice)) is not None,
        structured_outputs={"regex": PATTERN},
    )
    yield _check(
        asking, "grammar", ASKS_JSON, lambda choice: _text(choice) in IN_GRAMMAR, structured_outputs={"grammar": GRAMMAR}
    )


def _check(asking: SmokeClient, name: str, prompt: SmokePrompt, judge: Judge, **constraint: Any) -> SmokeResult:
    whole = 0
    for attempt in range(TRIES):
        if whole == WHOLE:
            break
        try:
            choice = asking.chat(prompt, **({**VARIED, "seed": attempt} if attempt else {}), max_tokens=TOKENS, **constraint)
        except NoParser:
            return SmokeResult(name, None, "vLLM runs without --tool-call-parser, and none is known for the chat template")
        except NoAnswerError as error:
            return SmokeResult(name, False, str(error))
        if choice["finish_reason"] != "length":
            whole += 1
            if not judge(choice):
                return SmokeResult(name, False, "an answer breaks the constraint")
    if not whole:
        return SmokeResult(name, None, f"each of {TRIES} answers was cut at {TOKENS} tokens")
    return SmokeResult(name, True, f"{counted(whole, 'answer')} as constrained")


def _rows(asking: SmokeClient, rows: Sequence[SmokePrompt]) -> SmokeResult:
    """Rows of the traffic that asked for a schema."""
    whole = 0
    for row in rows:
        schema = schema_of(row)
        try:
            choice = asking.chat(row, max_tokens=ROW_TOKENS, response_format=row.request["response_format"])
        except TooLong:
            continue
        except NoAnswerError as error:
            return SmokeResult("schema rows", False, f"row {row.row_id}: {error}")
        if choice["finish_reason"] != "length":
            whole += 1
            if schema is not None and not follows(schema, _text(choice)):
                return SmokeResult("schema rows", False, f"row {row.row_id}: the answer breaks the schema of its request")
    if not whole:
        return SmokeResult("schema rows", None, f"no answer was whole within {ROW_TOKENS} tokens and the server's context")
    return SmokeResult("schema rows", True, f"{counted(whole, 'answer')} of {len(rows)} whole, and as their requests ask")


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's response_format for a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def schema_of(prompt: SmokePrompt) -> dict[str, Any] | None:
    """The JSON schema that the request asked for; None without one."""
    shape = prompt.request.get("response_format")
    if not isinstance(shape, dict) or shape.get("type") != "json_schema" or not isinstance(shape.get("json_schema"), dict):
        return None
    schema = shape["json_schema"].get("schema")
    return schema if isinstance(schema, dict) else None


def follows(schema: dict[str, Any], text: str) -> bool:
    """Whether a text is JSON that the schema accepts."""
    return score_json(JsonItem(suite="smoke", item_id="", messages=[], json_schema=schema), text) == 1.0


def calls_tool(choice: dict[str, Any]) -> bool:
    """Whether a choice is a call of TOOL with accepted arguments."""
    try:
        [call] = choice["message"]["tool_calls"]
        function = call["function"]
        return function["name"] == TOOL["function"]["name"] and follows(
            TOOL["function"]["parameters"], json.dumps(json.loads(function["arguments"]))
        )
    except (KeyError, TypeError, ValueError):
        return False


def _text(choice: dict[str, Any]) -> str:
    return choice["message"].get("content") or ""


LEAST_AGREEMENT = 0.8
"""Least share of greedy tokens. Texts without token ids are tokenized again, and a few of their tokens are cut otherwise. The
gate served_agreement of a release is stricter, over more prompts."""
OWN_LAYERS, OWN_READING = "the target's own layers", "the server when it reads its own answers"

Scores = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""Raises ModelError if the comparison cannot be made."""


def compare_text(asking: SmokeClient, answers: Sequence[SmokeAnswer], scores: Scores) -> Iterator[SmokeResult]:
    """Findings on the chat template and on the text: greedy tokens of the right model are ranked first by its own layers, up to
    ties of 16-bit arithmetic, while a wrong kernel, or a drafter whose tokens are not verified, says nonsense quickly.

    Where the target is too large to be loaded beside its server, the server reads its own answers as prompts and gives their
    log-probabilities. Reading uses neither the drafter nor the cache that decoding fills, so unverified drafts and wrong
    decoding kernels show. Wrong weights do not."""
    try:
        compared = scores(
            [
                {
                    "row_id": answer.prompt.row_id,
                    "messages": answer.prompt.messages,
                    "tools": answer.prompt.tools,
                    "request": answer.prompt.request,
                    "prompt_ids": answer.prompt_ids,
                    "ids": answer.ids,
                    "text": answer.text,
                }
                for answer in answers
            ]
        )
    except ModelError as error:
        yield SmokeResult("own layers", None, str(error))
        yield _of_own_reading(asking, answers)
        return
    prompts, same = compared["prompts"], compared["same_prompts"]
    if prompts:
        said = f"{same} of {prompts} prompts have the tokens that the target was trained with"
        yield SmokeResult("template", same == prompts, said)
    yield _agreement(compared, OWN_LAYERS)


def _of_own_reading(asking: SmokeClient, answers: Sequence[SmokeAnswer]) -> SmokeResult:
    if asking.plain:
        return SmokeResult("text", None, "the server gives no token ids")
    try:
        return _agreement(read_scores(asking, answers), OWN_READING)
    except NoAnswerError as error:
        return SmokeResult("text", None, str(error))


def _agreement(agreement: dict[str, Any], of: str) -> SmokeResult:
    if not agreement["tokens"]:
        return SmokeResult("text", None, "it answered with no token")
    share, perplexity = agreement["agreed"] / agreement["tokens"], math.exp(min(agreement["nll"] / agreement["tokens"], 50.0))
    said = f"{share:z.1%} of {agreement['tokens']} greedy tokens equal those of {of}, perplexity {perplexity:.2f}"
    passed = share >= LEAST_AGREEMENT
    return SmokeResult("text", passed, said if passed else f"{said}: at least {LEAST_AGREEMENT:z.0%} have to agree")


def read_scores(asking: SmokeClient, answers: Sequence[SmokeAnswer]) -> dict[str, Any]:
    """tokens of the answers, how many of them are the likeliest (agreed), and the sum of their negative log-probabilities."""
    tokens, agreed, nll = 0, 0, 0.0
    for answer in answers:
        if not answer.prompt_ids or not answer.ids:
            continue
        ids = [*answer.prompt_ids, *answer.ids]
        choice = asking.completion(ids, echo=True, logprobs=1, max_tokens=1, temperature=0.0)
        try:
            said, first = choice["logprobs"], len(answer.prompt_ids)
            own, best = (said[name][first : len(ids)] for name in ("token_logprobs", "top_logprobs"))
            gaps = [max(top.values()) - logprob for logprob, top in zip(own, best, strict=True)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NoAnswerError("it gives no log-probabilities of a prompt (echo, logprobs)") from error
        tokens += len(gaps)
        agreed += sum(gap <= TIE_NATS for gap in gaps)
        nll -= sum(own)
    return {"tokens": tokens, "agreed": agreed, "nll": nll}


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
    Ends early if the server gives no answer at all."""
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


def failures(findings: Sequence[SmokeResult]) -> list[str]:
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
