"""Whether what is learnt is what a server would have said, for the chat templates of public models.

    python -m benchmarks.templates [--quick] [DIRECTORY ...]      # *.jinja files; without one, ../shared/data/chat_templates

Each template renders each kind of conversation (benchmarks.template_kinds). For every answer to learn the judge renders, with
transformers alone, the server's prompt and the conversation with the answer, and compares:

- learnt: the tokens before the answer are exactly the server's tokens of its prompt, and the learnt text is what follows the
  prompt in the rendering with the answer, up to the end of turn. Where the template opens a block of reasoning in the prompt
  that it does not write with the answer, the learnt text must close the block and then give the answer and its end.
- refused: the row is left out, although the template can render it.
- wrong: anything else.

A kind that the template cannot render itself (it raises, or leaves out the answer or its calls) is not counted.
"""

import argparse
import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from benchmarks.record import record
from benchmarks.template_kinds import KINDS, TOOLS, tokenizer_of
from model_ops.documents.conversations import tokenize
from model_ops.jobs import ModelError
from model_ops.rendering.chat_template import shared_beginning
from model_ops.rendering.row import Row
from model_ops.rendering.tokens import end_of_turn_ids

SHARED = Path(__file__).parents[2] / "shared" / "data" / "chat_templates"
REFUSALS = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)
MARKS = ("</think>", "</seed:think>", "</mm:think>", "[/THINK]", "<|END_THINKING|>", "<channel|>", "[BEGIN FINAL RESPONSE]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, default=[SHARED])
    parser.add_argument("--quick", action="store_true", help="the same, it takes seconds")
    parser.add_argument("--table", action="store_true", help="print the table of docs/templates.md")
    options = parser.parse_args()
    found = judged([path for folder in options.directories for path in sorted(folder.glob("*.jinja"))])
    if options.table:
        print(table(found))
        return
    figures = summary(found)
    record("templates", figures, options.directories == [SHARED])


def judged(paths: list[Path]) -> dict[str, dict[str, str]]:
    """For each template and kind: learnt, refused, wrong, or `-` where the template cannot render the kind."""
    return {path.stem: {kind: judge(path.read_text(), kind) for kind in KINDS} for path in paths}


def summary(found: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Numbers of templates by kind and result."""
    kinds = {kind: Counter(results[kind] for results in found.values()) for kind in KINDS}
    return {
        "templates": len(found),
        "kinds": {
            kind: {result: counts[result] for result in ("learnt", "refused", "wrong")} for kind, counts in kinds.items()
        },
    }


def table(found: dict[str, dict[str, str]]) -> str:
    """A Markdown table of the results."""
    lines = [f"| template | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(results.values())} |" for name, results in found.items())])


def judge(template: str, kind: str) -> str:
    """The result for one template and kind."""
    tokenizer, messages = tokenizer_of(template), KINDS[kind]
    tools = TOOLS if any(message.get("tool_calls") for message in messages) else None
    wanted = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("weight") == 0:
            continue
        try:
            prompt = served(tokenizer, messages[:index], tools, True)
            whole = served(tokenizer, messages[: index + 1], tools, False)
        except REFUSALS:
            return "-"
        said = said_in(message)
        added = whole[len(shared_beginning(prompt, whole)) :]
        if any(part not in added for part in said) or not shows_parts(messages[:index], prompt):
            return "-"
        wanted.append((prompt, whole, message))
    try:
        documents, _ = tokenize([Row("row", messages, tools, ts=datetime.now(UTC))], tokenizer, 100_000)
    except ModelError:
        return "refused"
    ends = end_of_turn_ids(tokenizer)
    given = [answer for document in documents for answer in answers_of(document)]
    if len(given) != len(wanted):
        return "wrong"
    for (context, answer), (prompt, whole, message) in zip(given, wanted, strict=True):
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        if context != ids or answer[-1] not in (*ends, tokenizer.eos_token_id):
            return "wrong"
        if not says(tokenizer.decode(answer[:-1]), tokenizer.decode(answer[-1:]), prompt, whole, message):
            return "wrong"
    return "learnt"


def says(answer: str, end: str, prompt: str, whole: str, message: dict[str, Any]) -> bool:
    """Whether the answer is what the model has to say between the prompt and its end of turn."""
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if whole.startswith(prompt):
        rest = whole[len(prompt) :]
        if reasoning and reasoning not in rest:  # a template that writes reasoning only within tool loops: its place is empty
            answer = answer.replace(reasoning, "")
        return rest.startswith(answer) and (rest[len(answer) :].startswith(end) or not rest[len(answer) :].strip())
    thought = next((mark for mark in MARKS if mark in answer), None)
    opened = thought is not None and thought not in prompt[-len(thought) - 4 :]
    reply = answer.partition(thought)[2] if opened and thought else answer
    place = whole.rfind(reply.strip())
    after = whole[place + len(reply.strip()) :].strip()
    return (
        bool(reply.strip())
        and place >= 0
        and (after.startswith(end.strip()) or not after)
        and not (opened and thought in reply)
        and all(part in reply for part in said_in(message))
    )


def said_in(message: dict[str, Any]) -> list[str]:
    """What an answer has to show: its content, the functions that it calls, and each argument of each call."""
    functions = [call["function"] for call in message.get("tool_calls", [])]
    arguments = [str(value) for function in functions for value in json.loads(function["arguments"]).values()]
    return [message["content"] or "", *(function["name"] for function in functions), *arguments]


def answers_of(document: Any) -> list[tuple[list[int], list[int]]]:
    """(tokens before, tokens of the answer) of every run of targets."""
    targets, ids = document.targets.tolist(), document.input_ids.tolist()
    begins = [place for place, learnt in enumerate(targets) if learnt and not (place and targets[place - 1])]
    ends = [next((place for place in range(begin, len(ids)) if not targets[place]), len(ids)) for begin in begins]
    return [(ids[:begin], ids[begin:end]) for begin, end in zip(begins, ends, strict=True)]


def served(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, prompt: bool) -> str:
    """The text that a server renders, as vLLM prepares messages."""
    parts = takes_parts(tokenizer)
    *before, last = messages
    given = [*(_served(message, parts) for message in before), _served(last, parts and prompt)]
    return tokenizer.apply_chat_template(given, tools=tools, tokenize=False, add_generation_prompt=prompt)


def takes_parts(tokenizer: Any) -> bool:
    """Whether vLLM gives the template texts as lists of parts: its format "openai"."""
    part = {"type": "text", "text": "QUESTION"}
    try:
        said = tokenizer.apply_chat_template([{"role": "user", "content": [part]}], tokenize=False)
    except REFUSALS:
        return False
    return "QUESTION" in said and "'text'" not in said and '"text"' not in said


def _served(message: dict[str, Any], parts: bool) -> dict[str, Any]:
    found = {name: value for name, value in message.items() if name != "weight"}
    found["content"] = message["content"] if message["content"] is not None else ""
    if parts and message["role"] != "tool" and isinstance(found["content"], str):
        found["content"] = [{"type": "text", "text": found["content"]}] if message["content"] is not None else []
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning:
        found.update(reasoning=reasoning, reasoning_content=reasoning)
    if message.get("tool_calls"):
        functions = [
            {**call["function"], "arguments": json.loads(call["function"]["arguments"])} for call in message["tool_calls"]
        ]
        found["tool_calls"] = [
            {**call, "function": function} for call, function in zip(message["tool_calls"], functions, strict=True)
        ]
    return found


def shows_parts(messages: list[dict[str, Any]], prompt: str) -> bool:
    """Whether the prompt has the text of content in parts, and not Python's form of the list."""
    parts = [
        part["text"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "text"
    ]
    return all(text in prompt for text in parts) and not (parts and re.search(r"""['"]type['"]:""", prompt))


if __name__ == "__main__":
    main()
