"""A stand-in for vLLM: an interpreter that serves the chat API without a model, to test what is around a server.

    python = stand_in_vllm(folder, token_s=0.01)        # for `millrace serve --program`
    behave(folder, never_healthy=True)                  # servers that are started from now on
    started(folder)                                     # the command line of each server

It loads and unloads adapters as vLLM does, and answers in the name of the model that is asked, with words of its own for each.
It answers with words that depend on the prompt, keeps to the constraints of the smoke set, counts drafts if it was started
with a drafter, and ends running requests on SIGTERM as vLLM does.
"""

import json
import shlex
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

WORDS = [
    "the",
    "sea",
    "is",
    "wide",
    "and",
    "blue",
    "and",
    "very",
    "old",
    "and",
    "full",
    "of",
    "fish",
    "that",
    "swim",
    "in",
    "the",
    "deep",
    "water",
    "far",
    "from",
    "land",
]
LONGEST = 256


def stand_in_vllm(folder: Path, **behaviour: Any) -> Path:
    """Writes the interpreter. behaviour: see `behave`."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {shlex.quote(__file__)} {shlex.quote(str(folder))} "$@"\n'
    )
    python.chmod(0o755)
    behave(folder, **behaviour)
    return python


def behave(folder: Path, **behaviour: Any) -> None:
    """What servers that are started from now on do.

    token_s: seconds a word. start_s: seconds until it is healthy. never_healthy. exits: a message that it ends with at its
    start. html: it answers with a page. ignores: constraints ("json", "regex", "grammar", "tools", "stop") that it does not
    keep to. gap: nats by which its own tokens are behind the likeliest one when it reads them. without_drafts: it makes no
    draft. without_parser: it refuses named tools. refuses_long: HTTP status of a prompt that is too long. refuses_adapters:
    what it says of each adapter. only: all this holds for servers whose command line has this text.
    """
    (folder / "behaviour.json").write_text(json.dumps(behaviour))


def started(folder: Path) -> list[list[str]]:
    """What followed the interpreter's name at each start of a server."""
    path = folder / "started"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(folder: Path, words: list[str]) -> None:
    if words[0] == "-c":  # whether a package is installed: only vLLM
        sys.exit("'vllm'" not in words[1])
    with (folder / "started").open("a") as file:
        file.write(json.dumps(words) + "\n")
    behaviour = json.loads((folder / "behaviour.json").read_text())
    if behaviour.get("only", "") not in " ".join(words):
        behaviour = {}
    if "exits" in behaviour:
        sys.exit(behaviour["exits"])
    server = ThreadingHTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler)
    server.daemon_threads = True
    Handler.behaviour, Handler.drafting = behaviour, "--speculative-config" in words and not behaviour.get("without_drafts")
    given = dict(pairwise(words))
    Handler.models = {given.get("--served-model-name", "served"): words[words.index("serve") + 1]} if "serve" in words else {}
    Handler.fingerprint, Handler.takes_adapters = given.get("--fingerprint-value", ""), "--enable-lora" in words
    server.serve_forever()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    behaviour: ClassVar[dict[str, Any]] = {}
    drafting = False
    began = time.monotonic()
    drafts, lock = 0, threading.Lock()
    models: ClassVar[dict[str, str]] = {}
    fingerprint, takes_adapters = "", False

    def do_GET(self) -> None:
        ready = not self.behaviour.get("never_healthy") and time.monotonic() - self.began >= self.behaviour.get("start_s", 0)
        if self.path == "/health":
            self.reply("", 200 if ready else 503)
        elif self.path == "/v1/models":
            self.reply({"data": [{"id": name, "root": root, "max_model_len": LONGEST} for name, root in self.models.items()]})
        elif self.path == "/metrics":
            self.reply(
                "".join(
                    f'vllm:spec_decode_num_{name}_total{{engine="0"}} {Handler.drafts}\n'
                    for name in ("drafts", "draft_tokens", "accepted_tokens")
                )
            )
        else:
            self.reply({"error": {"message": "not found"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter") and self.takes_adapters:
            self.change_adapters(body)
        elif self.takes_adapters and body.get("model") not in self.models:
            self.reply({"error": {"message": "The model does not exist."}}, 404)
        elif self.behaviour.get("html"):
            self.reply("<!doctype html><title>Welcome</title>")
        elif len(json.dumps(body.get("messages", ""))) > 2 * LONGEST:
            self.reply({"error": {"message": f"This model's maximum context length is {LONGEST} tokens."}}, 400)
        elif isinstance(body.get("tool_choice"), dict) and self.behaviour.get("without_parser"):
            self.reply({"error": {"message": 'tool_choice=function "f" requires --tool-call-parser to be set'}}, 400)
        elif self.path == "/v1/completions":
            too_long = len(body["prompt"]) + body["max_tokens"] > LONGEST
            self.reply(
                {"choices": [{"text": "sea", "finish_reason": "length", **self.logprobs(body)}]},
                self.behaviour.get("refuses_long", 400) if too_long else 200,
            )
        elif body.get("stream"):
            self.stream(self.words(body), body.get("model", ""))
        else:
            time.sleep(self.behaviour.get("token_s", 0) * len(self.words(body)))
            self.reply(self.chat(body))

    def change_adapters(self, body: dict[str, Any]) -> None:
        name, refused = body["lora_name"], self.behaviour.get("refuses_adapters")
        if self.path.startswith("/v1/unload"):
            self.reply("gone" if self.models.pop(name, None) else {"error": {"message": "cannot be found"}})
        elif refused:
            self.reply({"error": {"message": refused}}, 500)
        else:
            self.models[name] = body["lora_path"]
            self.reply("loaded")

    def words(self, body: dict[str, Any]) -> list[str]:
        if self.drafting:
            with self.lock:
                Handler.drafts += 1
        start = sum(json.dumps(body["messages"]).encode() + str(body.get("model", "")).encode()) % 7
        return WORDS[start : start + max(1, body.get("max_tokens", 16) // 4)]

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        text, message, ignores = " ".join(self.words(body)), {}, self.behaviour.get("ignores", [])
        shape = (body.get("response_format") and "json") or next(iter(body.get("structured_outputs", {})), "")
        if shape and shape not in ignores:
            text = {"json": '{"answer": "yes", "count": 2}', "regex": "yes-42", "grammar": "left."}[shape]
        if isinstance(body.get("tool_choice"), dict):
            arguments = '{"colour": "blue"}' if "tools" in ignores else '{"colour": "red"}'
            message = {
                "tool_calls": [
                    {
                        "type": "function",
                        "id": "1",
                        "function": {"name": body["tool_choice"]["function"]["name"], "arguments": arguments},
                    }
                ]
            }
        for stop in body.get("stop", []) if "stop" not in ignores else []:
            text = text.split(stop)[0]
        ids = {"token_ids": list(range(9, 9 + len(text.split())))} if body.get("return_token_ids") else {}
        choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop", **ids}
        return {
            "id": "1",
            "object": "chat.completion",
            "choices": [choice],
            "usage": {"completion_tokens": len(text.split())},
            "model": body.get("model", ""),
            "system_fingerprint": self.fingerprint,
            **({"prompt_token_ids": [5, 6, 7]} if ids else {}),
        }

    def logprobs(self, body: dict[str, Any]) -> dict[str, Any]:
        """Log-probabilities of the prompt: -1 nat each, and `gap` nats behind the likeliest token."""
        count, gap = len(body["prompt"]), self.behaviour.get("gap")
        if not body.get("echo") or gap is None:
            return {}
        return {
            "logprobs": {
                "token_logprobs": [None, *[-1.0] * count],
                "top_logprobs": [None, *[{"own": -1.0, "best": -1.0 + gap}] * count],
            }
        }

    def stream(self, words: list[str], model: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, word in enumerate(words):
            time.sleep(self.behaviour.get("token_s", 0))
            last = place == len(words) - 1
            choice = {"delta": {"content": f"{word} "}, "finish_reason": "stop" if last else None}
            self.event(json.dumps({"model": model, "system_fingerprint": self.fingerprint, "choices": [choice]}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data: str) -> None:
        line = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def reply(self, said: Any, status: int = 200) -> None:
        content = (said if isinstance(said, str) else json.dumps(said)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
