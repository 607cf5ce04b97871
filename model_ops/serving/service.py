"""What a server of a release says in every answer, and what it does not keep: flags and environment beside model and drafter.

    service = Service(fingerprint=fingerprint("3f2a91c0d4e5", "<digest of the target>"), zero_retention=True)
    service_words("vllm", service)                # --fingerprint-mode custom --fingerprint-value ... --shutdown-timeout 120
    service_environment("vllm", service, "...")   # {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", ...}
    tool_parser_of(template)                      # "hermes"; None for a chat template whose form is not known here

The fingerprint names the release and its target. vLLM writes it into `system_fingerprint`, SGLang into
`metadata.weight_version`; the ingest of logs reads the target's digest from it (sql/reading/macros.sql). Without a tool parser
vLLM 0.32 refuses requests that ask for a tool by name, or for any tool.

Flags of vLLM 0.32 (vllm/entrypoints/openai/cli_args.py, vllm/engine/arg_utils.py) and SGLang 0.5.23
(sglang/srt/server_args.py). Importing this file imports no torch."""

from dataclasses import dataclass
from typing import Any, Literal

ServerKind = Literal["vllm", "sglang"]

PREFIX = "millrace"
DRAIN_S = 120
LOGGING_CONFIG = "vllm-logging.json"
QUOTES_REQUESTS = (
    "vllm.entrypoints.openai", "vllm.entrypoints.serve", "vllm.entrypoints.scale_out", "vllm.entrypoints.chat_utils",
    "vllm.entrypoints.anthropic", "vllm.inputs", "vllm.logging_utils.dump_input", "vllm.multimodal", "vllm.parser",
    "vllm.reasoning", "vllm.renderers", "vllm.sampling_params", "vllm.tokenizers", "vllm.tool_parsers",
    "vllm.v1.engine.async_llm", "vllm.v1.engine.input_processor", "vllm.v1.engine.output_processor",
    "vllm.v1.structured_output", "uvicorn", "uvicorn.access", "uvicorn.error", "asyncio",
)  # fmt: skip
"""Loggers of vLLM's server whose messages may hold text of a request."""


@dataclass(frozen=True)
class Service:
    """How a release is served."""

    fingerprint: str = ""
    """system_fingerprint of every answer; "" for none."""
    zero_retention: bool = False
    """Whether the server keeps no text of requests and answers, in memory or on disk."""
    drain_s: int = DRAIN_S
    """Seconds that running requests may take after the server is told to stop; vLLM's default of 0 aborts them."""
    metrics: bool = True
    """Whether answers carry the time and accepted drafts of their request."""


def fingerprint(release: str, target_digest: str) -> str:
    """`millrace-<release's version>-<digest of the target's artefact>`."""
    return f"{PREFIX}-{release}-{target_digest}"


def service_words(server: ServerKind, service: Service, drafts: bool) -> list[str]:
    """The server's flags. drafts: whether it speculates. SGLang has no flag for metrics in answers, only for /metrics, and none
    for draining: it finishes running requests on SIGTERM. Its request log and its dumps are off unless asked for."""
    return (_vllm if server == "vllm" else _sglang)(service, drafts)


def service_environment(server: ServerKind, service: Service, release_directory: str) -> dict[str, str]:
    """Environment variables of the server. release_directory: where the server finds the release's files."""
    variables = {"HF_HUB_OFFLINE": "1"}  # weights are local: nothing is looked up elsewhere
    if service.zero_retention:
        variables["DO_NOT_TRACK"] = "1"
        if server == "vllm":
            variables |= {
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_LOGGING_LEVEL": "INFO",
                "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "0",
                "VLLM_ENABLE_RESPONSES_API_STORE": "0",
                "VLLM_SERVER_DEV_MODE": "0",
                "VLLM_LOGGING_CONFIG_PATH": f"{release_directory}/{LOGGING_CONFIG}",
            }
    return variables


def logging_config() -> dict[str, Any]:
    """vLLM's logging where nothing of a request may be written. Messages about requests quote them: names of models, templates'
    errors, grammars, tool calls; and on a crash vLLM lists the sampling parameters of what was running, which hold stop words
    and schemas. What the engine says of itself is still written."""
    silent = {"level": "CRITICAL", "handlers": ["silent"], "propagate": False}
    said = {"level": "INFO", "handlers": ["said"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "vllm": {
                "class": "vllm.logging_utils.NewLineFormatter",
                "datefmt": "%m-%d %H:%M:%S",
                "format": "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s",
            }
        },
        "handlers": {
            "said": {"class": "logging.StreamHandler", "formatter": "vllm", "level": "INFO", "stream": "ext://sys.stdout"},
            "silent": {"class": "logging.NullHandler"},
        },
        "loggers": {"vllm": said, **dict.fromkeys(QUOTES_REQUESTS, silent)},
    }


def _vllm(service: Service, drafts: bool) -> list[str]:
    words = []
    if service.fingerprint:
        words += ["--fingerprint-mode", "custom", "--fingerprint-value", service.fingerprint]
    if service.metrics:
        words += ["--enable-per-request-metrics"]
        words += ["--per-request-spec-decode-metrics", "summary"] if drafts else []
    words += ["--shutdown-timeout", str(service.drain_s), "--disable-uvicorn-access-log"]
    if service.zero_retention:
        words += [
            "--no-enable-prefix-caching",
            "--mm-processor-cache-gb",
            "0",
            "--no-enable-log-requests",
            "--no-enable-log-outputs",
            "--disable-fastapi-docs",
        ]
    return words


def _sglang(service: Service, drafts: bool) -> list[str]:
    words = ["--weight-version", service.fingerprint] if service.fingerprint else []
    words += ["--enable-metrics"] if service.metrics else []
    words += ["--uvicorn-access-log-exclude-prefixes", "/"]
    return words + (["--disable-radix-cache"] if service.zero_retention else [])


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
