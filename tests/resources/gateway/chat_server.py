"""A server on the loopback that answers chats as vLLM does: whole or streamed, with token ids where they are asked for."""

import gzip
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
TOOL_CALL = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}}


class ChatServer:
    """url; seen: bodies of requests, in order. Behaviour by the text of the last message: `die` breaks a stream off, `fail` is
    HTTP 500, `text` is no JSON, `gzip` is compressed, `call` calls a tool. refuses_ids: HTTP 400 where ids are asked for.
    complains: HTTP 400 for every request, with a text that quotes it. chunked: whole answers have no length.
    gate: streams wait for it after each part, and with `hold` all answers before they begin."""

    def __init__(self, refuses_ids=False, complains=False, chunked=False):
        self.complains, self.chunked = complains, chunked
        self.refuses_ids, self.seen, self.gate, self.hold = refuses_ids, [], threading.Event(), False
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                outer.seen.append(raw)
                try:
                    body = json.loads(raw)
                except ValueError:
                    return self.reply(400, {"error": {"message": "no JSON", "type": "invalid_request_error"}})
                if outer.complains:
                    return self.reply(400, {"error": {"message": f"wrong: {raw.decode()}"}})
                if outer.refuses_ids and "return_token_ids" in body:
                    return self.reply(400, {"error": {"message": "Unrecognized request argument: return_token_ids"}})
                if self.path != "/v1/chat/completions":
                    return self.reply(200, {"data": []})
                if outer.hold:
                    outer.gate.wait(10)
                word = body["messages"][-1]["content"]
                if word == "fail":
                    return self.reply(500, {"error": {"message": "out of memory", "type": "server_error"}})
                if word == "text":
                    return self.reply(200, "hello")
                name = f"chatcmpl-{len(outer.seen)}"
                if body.get("stream"):
                    return self.stream(name, body, word)
                ids = body.get("return_token_ids")
                message = {"role": "assistant", "content": 'it is, "token_ids": [9]'}
                if word == "call":
                    message = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
                choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
                answer = {"id": name, "object": "chat.completion", "created": 1780300000, "model": "m-1", "usage": USAGE}
                answer |= {"system_fingerprint": "fp-1", "prompt_token_ids": [1, 2, 3] if ids else None}
                answer["choices"] = [{**choice, "token_ids": [7, 8] if ids else None}]
                return self.reply(200, answer, compressed=word == "gzip")

            def stream(self, name, body, word):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for line in stream_lines(name, body.get("return_token_ids"), word):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                    outer.gate.wait(10)
                    if word == "die":
                        self.close_connection = True
                        return
                self.wfile.write(b"0\r\n\r\n")

            def reply(self, status, said, compressed=False):
                content = (said if isinstance(said, str) else json.dumps(said)).encode()
                content = gzip.compress(content) if compressed else content
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if compressed:
                    self.send_header("Content-Encoding", "gzip")
                if outer.chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                    parts = [b"%x\r\n%s\r\n" % (len(part), part) for part in (content[:40], content[40:])]
                    content = b"".join([*parts, b"0\r\n\r\n"])
                else:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self):
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()


def stream_lines(name, ids, word):
    """The events of a streamed answer, as bytes."""

    def chunk(delta, finish=None, **more):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more.pop("choice", {})}
        about = {"id": name, "object": "chat.completion.chunk", "created": 1780300000, "model": "m-1"}
        return {**about, "choices": [choice], **more}

    first = chunk({"role": "assistant", "content": ""}, **({"prompt_token_ids": [1, 2, 3]} if ids else {}))
    delta = {"tool_calls": [{"index": 0, **TOOL_CALL}]} if word == "call" else {"content": "hé "}
    parts = [
        first,
        chunk(delta, choice={"token_ids": [7]} if ids else {}),
        chunk({"content": "yes"} if word != "call" else {}, "stop", choice={"token_ids": [8]} if ids else {}),
    ]
    usage = {**chunk({}), "choices": [], "usage": USAGE}
    return [f"data: {json.dumps(part, ensure_ascii=False)}\n\n".encode() for part in [*parts, usage]] + [b"data: [DONE]\n\n"]


@contextmanager
def chat_server(**behaviour):
    server = ChatServer(**behaviour)
    try:
        yield server
    finally:
        server.stop()
