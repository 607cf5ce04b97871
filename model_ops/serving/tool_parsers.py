"""Which parser of vLLM reads a model's tool calls, by its chat template.

    tool_parser_of(template)          # "hermes"; None for a template whose form is not known here

Without a parser vLLM 0.32 refuses requests that ask for a tool by name, or for any tool.
"""

from __future__ import annotations

HERMES_CALL, XML_CALL = "<tool_call>", "<function="
MARKS = {"[TOOL_CALLS]": "mistral", "<|python_tag|>": "llama3_json"}
"""Part of a template that shows the form of its calls -> vLLM's name of the parser."""


def tool_parser_of(template: str) -> str | None:
    """Hermes' form (JSON in <tool_call> tags) is that of Qwen 2.5, Qwen 3, Hermes and this project's own template."""
    if HERMES_CALL in template and "arguments" in template and XML_CALL not in template:
        return "hermes"
    return next((parser for mark, parser in MARKS.items() if mark in template), None)


def tool_words(template: str) -> list[str]:
    """Words for `vllm serve`; [] where no parser is known."""
    parser = tool_parser_of(template)
    return ["--enable-auto-tool-choice", "--tool-call-parser", parser] if parser else []
