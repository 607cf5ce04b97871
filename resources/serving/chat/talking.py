"""A speaker's process, and its answers as they grow.

This process never loads a model. What is said goes through pipes, and into no file and no log.
"""

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model_ops.jobs import CheckFailed
from model_ops.machine import pipe_of
from resources.launching import child_environment, python_module
from resources.serving.chat.speaker import Speaker

ENDS_WITHIN_S = 5.0


class TalkError(CheckFailed):
    """A model cannot answer; the message says why."""


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    role: Literal["system", "user", "assistant"]
    content: str


class Question(BaseModel):
    """A conversation that ends with what is asked, and how its answer is sampled."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    messages: list[Message] = Field(min_length=1)
    temperature: float = Field(1.0, ge=0, le=5)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(512, ge=1, le=32_768)
    seed: int = Field(0, ge=0, lt=2**53)
    draft: bool = True
    """Draft with the drafter, if there is one."""


class Talking:
    """positions: most tokens of a conversation. temperature, top_p: what a server samples with where a request says nothing."""

    def __init__(self, speaker: Speaker, process: subprocess.Popen[str]):
        self.speaker, self._process = speaker, process
        self._input, self._output = pipe_of(process.stdin), pipe_of(process.stdout)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """In a thread: Ctrl-C in the middle of a read would lose what was read."""
        with suppress(ValueError):
            for line in self._output:
                self._lines.put(line)
        self._lines.put("")

    def wait(self) -> None:
        """Until the model is loaded. Raises TalkError if it cannot be."""
        said = self.line()
        if "error" in said:
            raise TalkError(f"{self.speaker.name} cannot answer: {said['error']}")
        self.positions, self.temperature, self.top_p = said["positions"], said["temperature"], said["top_p"]

    def ask(self, question: Question) -> None:
        """Begins an answer, whose lines `line` gives. Raises TalkError if the process ended."""
        self._write(question.model_dump())

    def stop(self) -> None:
        """Ends the present answer, after its round; nothing if there is none."""
        with suppress(TalkError):
            self._write({"stop": True})

    def _write(self, said: dict[str, Any]) -> None:
        try:
            self._input.write(json.dumps(said) + "\n")
            self._input.flush()
        except (OSError, ValueError) as error:
            raise TalkError(self._ended()) from error

    def line(self) -> dict[str, Any]:
        """The next line of the process. Raises TalkError if it ended."""
        line = self._lines.get()
        if not line.endswith("\n"):
            self._lines.put("")  # for whoever asks next
            raise TalkError(self._ended())
        return json.loads(line)

    def _ended(self) -> str:
        return (
            f"the process of {self.speaker.name} ended (exit code {self._process.poll()}); if it was killed, this machine "
            "may have too little memory for the model"
        )


@contextmanager
def talking(speaker: Speaker) -> Iterator[Talking]:
    """A process that loads the model, for as long as the block runs. It is in a session of its own: Ctrl-C stops an answer, and
    not the model. Its standard error is not read, because a library's message may quote what was said."""
    process = subprocess.Popen(
        python_module("model_ops.serving.talk", *speaker.words),
        env=child_environment(HF_HUB_OFFLINE="1"),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    asked, answered = pipe_of(process.stdin), pipe_of(process.stdout)
    try:
        yield Talking(speaker, process)
    finally:
        with suppress(OSError):
            asked.close()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        answered.close()
