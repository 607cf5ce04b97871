"""A speaker without a model: says the lines that a test gives it."""

import queue
from pathlib import Path

from model_ops.drafting.drafts import with_drafter
from resources.serving.chat.talking import Speaker, TalkError

DONE = {"done": "stop", "dropped": 0, "prompt_tokens": 5, "tokens": 4, "first_s": 0.1, "seconds": 0.5}
DONE |= {"drafts": 1, "drafted": 3, "accepted": 2, "rest": ""}
ANSWER = [{"pieces": [["The", False]]}, {"pieces": [[" small", True], [" cat", True], ["\x1b[31m!", False]]}, DONE]


class StandIn:
    """lines: of each answer. waits: it says its last line only when it is stopped. asked: the questions."""

    positions, temperature, top_p = 512, 0.7, 0.9

    def __init__(self, name="champion 1 of tutor", workload="tutor", lines=ANSWER, waits=False):
        known = (workload, "3f2a91c0d4e5", "d" * 64, "Be brief.", 0.5)
        self.speaker = Speaker(name, Path("model"), with_drafter(3), Path("drafter"), *known)
        self.lines, self.waits, self.asked, self.stopped = lines, waits, [], 0
        self._queue = queue.Queue()

    def ask(self, question):
        self.asked.append(question)
        for line in self.lines[:-1] if self.waits else self.lines:
            self._queue.put(line)

    def line(self):
        said = self._queue.get(timeout=20)
        if isinstance(said, BaseException):
            raise said
        return said

    def stop(self):
        self.stopped += 1
        if self.waits:
            self._queue.put({**DONE, "done": "stopped"})

    def die(self):
        self.lines = [TalkError("the process ended")]
