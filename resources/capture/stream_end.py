"""Says when the last event of a streamed answer is whole, without parsing its text.

    end = StreamEnd("messages")
    end.seen(part)                # True once the stream's last event is complete: the parts so far are the whole answer

Each API has its own last event: `data: [DONE]` of Chat Completions, `message_stop` of Anthropic's Messages, and
`response.completed`, `.incomplete` or `.failed` of the Responses API. Events may be cut anywhere by the network. A name inside
a JSON string is written with backslashes before its quotation marks, so it is not taken for an event's own.
"""

from __future__ import annotations

import re

HEAD, TAIL = 512, 3
"""Bytes of an unfinished event that are looked at: its begin names it, its end may be half of an empty line."""
_BETWEEN = re.compile(rb"\r?\n\r?\n|\r\r")
_LAST = {
    "chat": re.compile(rb"(?m)^data: ?\[DONE\]"),
    "messages": re.compile(rb'(?m)^event: ?message_stop\s*$|"type"\s*:\s*"message_stop"'),
    "responses": re.compile(rb'(?m)^event: ?response\.(?:completed|incomplete|failed)\s*$'
                            rb'|"type"\s*:\s*"response\.(?:completed|incomplete|failed)"'),
}
_DONE = b"data: [DONE]"


class StreamEnd:
    """Of one answer. form: the API, as in recorder.CAPTURED."""

    def __init__(self, form: str):
        self._form, self._last, self._open = form, _LAST[form], b""

    def seen(self, part: bytes) -> bool:
        """Whether the stream's last event is whole with this part."""
        *whole, self._open = _BETWEEN.split(self._open + part)
        if any(self._last.search(event[:HEAD]) for event in whole):
            return True
        if len(self._open) > HEAD + TAIL:
            self._open = self._open[:HEAD] + self._open[-TAIL:]
        return self._form == "chat" and self._open.strip() == _DONE  # some servers end without an empty line
