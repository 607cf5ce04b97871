"""A stand-in for an environment with an inference server: an interpreter that serves the completions API without a model.

    python = stand_in(folder, answers=[...])        # for `evaluation.server.python`
    started(folder)                                 # the words that each server was started with
    living(folder)                                  # processes of its servers that still run

Each server starts a process of its own, as vLLM starts its engine.
"""

import json
import os
import sys
from pathlib import Path

SCRIPT = """#!{python}
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path({folder!r})
if sys.argv[1] == "-c":
    sys.exit(0)
behaviour = json.loads((FOLDER / "behaviour.json").read_text())
engine = subprocess.Popen(["sleep", "600"])
with (FOLDER / "started").open("a") as file:
    file.write(json.dumps({{"words": sys.argv[1:], "processes": [os.getpid(), engine.pid]}}) + "\\n")
print("the server starts", flush=True)
if "exits" in behaviour and behaviour.get("only", "") in " ".join(sys.argv):
    sys.exit(behaviour["exits"])
port, began, asked = int(sys.argv[sys.argv.index("--port") + 1]), time.monotonic(), []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        ready = time.monotonic() - began >= behaviour.get("late_s", 0)
        if self.path == "/health":
            self.reply("", 200 if ready else 503)
        elif behaviour.get("html"):
            self.reply("<!doctype html><title>Welcome</title>")
        elif self.path == "/version":
            self.reply(json.dumps({{"version": "0.0.1"}}))
        elif self.path == "/v1/models":
            self.reply(json.dumps({{"data": [{{"id": "served", "max_model_len": behaviour.get("longest", 256)}}]}}))
        else:
            self.reply("", 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append(body)
        if behaviour.get("writes"):
            with open(behaviour["writes"], "a") as file:
                file.write(json.dumps(body) + "\\n")
        if len(asked) == behaviour.get("dies_at"):
            print("a user wrote: my secret", flush=True)
            os._exit(9)
        key = " ".join(map(str, body["prompt"]))
        if body.get("echo"):
            self.reply(json.dumps({{"choices": [{{"logprobs": {{"token_logprobs": [None, *behaviour["logprobs"][key], -1.0]}}}}]}}))
            return
        tokens = behaviour["answers"][key]
        choice = {{"text": "four" if len(tokens) else "", "finish_reason": "stop"}}
        if not behaviour.get("without_ids"):
            choice["token_ids"] = tokens
        self.reply(json.dumps({{"choices": [choice], "usage": {{"completion_tokens": len(tokens)}}}}))

    def reply(self, text, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def stand_in(folder, **behaviour):
    """Writes the interpreter. behaviour: late_s, seconds until it can be asked; exits, a message that it exits with, and only,
    a word that those servers were started with; html; dies_at, the request at which it ends; longest; logprobs and answers by
    the prompt's ids; without_ids."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "behaviour.json").write_text(json.dumps(behaviour))
    python = folder / "python"
    python.write_text(SCRIPT.format(python=sys.executable, folder=str(folder)))
    python.chmod(0o755)
    return str(python)


def key_of(ids):
    return " ".join(map(str, ids))


def started(folder):
    path = folder / "started"
    return [json.loads(line)["words"] for line in path.read_text().splitlines()] if path.exists() else []


def living(folder):
    """Process ids that run and are no zombies."""
    processes = [number for line in (folder / "started").read_text().splitlines() for number in json.loads(line)["processes"]]
    return [number for number in processes if _runs(number)]


def _runs(number):
    try:
        os.kill(number, 0)
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
