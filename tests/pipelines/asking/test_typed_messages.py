"""What is typed and pasted into `millrace chat` in a terminal, a pseudo-terminal here, and what a pipe gives it."""

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest

CHILD = """
import json, sys, time
from pipelines.asking.typed_messages import TypedMessages

typed, asked = TypedMessages(), []
try:
    while True:
        asked.append(typed("> ").strip())
        with typed.ahead():
            time.sleep(float(sys.argv[2]))
except EOFError:
    with open(sys.argv[1], "w") as file:
        json.dump(asked, file)
"""


@pytest.fixture
def typed(tmp_path):
    """typed(*pieces): the messages that were asked. A number among the pieces is a wait in seconds."""

    def typed(*pieces, answer_s=0.0):
        ours, theirs = pty.openpty()
        words = [sys.executable, "-c", CHILD, str(tmp_path / "asked"), str(answer_s)]
        child = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)
        read_until(ours, b"> ")
        for piece in pieces:
            if isinstance(piece, bytes):
                os.write(ours, piece)
            else:
                read_until(ours, None, piece)
        os.write(ours, b"\x04")
        read_until(ours, None, 1.0 + 2 * answer_s)
        assert child.wait(20) == 0
        os.close(ours)
        return json.loads((tmp_path / "asked").read_text())

    return typed


def read_until(terminal, text, seconds=60.0):
    """Reads what the terminal shows, as a terminal does all the time."""
    shown, until_s = b"", time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0 and (text is None or text not in shown):
        if select.select([terminal], [], [], left_s)[0]:
            try:
                shown += os.read(terminal, 1 << 16)
            except OSError:  # the child ended
                return
    assert text is None or text in shown, shown


def test_lines_that_are_pasted_at_once_are_one_message_and_lines_that_are_typed_are_several(typed):
    assert typed(b"one\n\n  two\nthree\n", 0.4, b"four\n", 0.4, b"five\n", 0.4) == ["one\n\n  two\nthree", "four", "five"]


def test_a_paste_without_a_last_line_break_waits_for_it(typed):
    assert typed(b"one\ntwo", 0.4, b" more\n", 0.4) == ["one\ntwo more"], "a line that is not ended is no message yet"


def test_a_paste_that_the_terminal_marks_is_one_message(typed):
    assert typed(b"\x1b[200~one\rtwo\x1b[201~", 0.4, b"\r", 0.4, b"/etc/hosts\r", 0.4) == ["one\ntwo", "/etc/hosts"]


def test_what_is_typed_while_an_answer_grows_is_asked_after_it(typed):
    said = typed(b"one\n", 0.3, b"two\n", 0.3, b"three\nfour\n", 3.0, answer_s=1.2)
    assert said == ["one", "two", "three\nfour"]


def test_without_a_terminal_each_line_is_a_message(tmp_path):
    words = [sys.executable, "-c", CHILD, str(tmp_path / "asked"), "0"]
    subprocess.run(words, input=b"one\ntwo\n", stdout=subprocess.DEVNULL, check=True)
    assert json.loads((tmp_path / "asked").read_text()) == ["one", "two"]
