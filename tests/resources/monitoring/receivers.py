"""Receivers of alerts on the loopback: a webhook that answers, refuses or hangs, and a mail server."""

import json
import socketserver
import threading
import time
from contextlib import contextmanager
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Webhook:
    """got: what was posted, and the idempotency keys. status: what it answers; None: it hangs until it is released."""

    def __init__(self):
        self.got, self.keys, self.status, self.released = [], [], 200, threading.Event()

    @contextmanager
    def listening(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.keys.append(self.headers["idempotency-key"])
                if outer.status is None:
                    outer.released.wait(20)
                    return
                if outer.status == 200:
                    outer.got.append(json.loads(body))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *words): ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}/hook?token=SECRET"
        try:
            yield self
        finally:
            self.released.set()
            server.shutdown()
            server.server_close()


class MailServer:
    """mails: what was sent. login: the words of AUTH PLAIN, if any. refuses: whether it takes no recipient. pause_s: before
    each answer."""

    def __init__(self, pause_s=0.0):
        self.mails, self.login, self.refuses, self.pause_s = [], "", False, pause_s

    @contextmanager
    def listening(self):
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def say(self, line):
                time.sleep(outer.pause_s)
                self.wfile.write(f"{line}\r\n".encode())

            def handle(self):
                self.say("220 here")
                while line := self.rfile.readline():
                    word = line.split()[0].upper() if line.split() else b""
                    if word == b"EHLO":
                        self.say("250-here\r\n250 AUTH PLAIN")
                    elif word == b"AUTH":
                        outer.login = line.decode().split()[-1]
                        self.say("235 welcome")
                    elif word == b"RCPT" and outer.refuses:
                        self.say("550 nobody of that name")
                    elif word == b"DATA":
                        self.say("354 go on")
                        lines = []
                        while (each := self.rfile.readline()) != b".\r\n":
                            lines.append(each)
                        outer.mails.append(message_from_bytes(b"".join(lines), policy=policy.default))
                        self.say("250 taken")
                    elif word == b"QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 fine")

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.port = server.server_address[1]
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
