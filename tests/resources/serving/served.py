"""What serves behind a front, as a client and as `millrace serve` see it."""

import json
import time

import urllib3

from resources.gateway.pass_through import RELEASE_HEADER


class Served:
    def __init__(self, following, front, said):
        self.following, self.front, self.said = following, front, said

    def ask(self, model="tutor", headers=None, **more):
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}], **more})
        return urllib3.request("POST", f"{self.front.url}/v1/chat/completions", body=body, headers=headers, retries=False)

    def answering(self, model="tutor", headers=None):
        """The release of an answer, or the status of a request without one."""
        answer = self.ask(model, headers)
        return answer.headers.get(RELEASE_HEADER) if answer.status == 200 else answer.status

    def look_until(self, condition):
        until = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < until, self.said
            self.following.look()
            time.sleep(0.02)
