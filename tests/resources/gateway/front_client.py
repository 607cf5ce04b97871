"""A client of the front."""

import time

import urllib3

CHAT = "/v1/chat/completions"


def ask(front, body=b"{}", headers=None, path=CHAT, method="POST"):
    return urllib3.request(method, front.url + path, body=body, headers=headers, retries=False, timeout=10)


def wait_for(condition):
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
