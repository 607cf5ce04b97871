"""`millrace chat` in a terminal: what is asked, shown, stopped and rated."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from rich.console import Console

from pipelines.asking.conversation import TerminalChat
from resources.lake.lake import LakeLayout
from tests.resources.serving.stand_in import ANSWER, DONE, StandIn


@pytest.fixture
def talk(tmp_path, monkeypatch):
    """talk(lines, [speakers]): what was printed. A line may be an exception, which the keyboard raises."""
    monkeypatch.setenv("MILLRACE_USER", "ana")
    lake = LakeLayout.open(tmp_path / "lake")

    def talk(lines, *speakers, **sampling):
        waiting = iter([*lines, EOFError()])

        def ask(_):
            line = next(waiting)
            if isinstance(line, BaseException):
                raise line
            return line() or "/quit" if callable(line) else line

        shown = io.StringIO()
        console = Console(file=shown, width=80, force_terminal=False)
        TerminalChat(console, lake, speakers, "Be brief.", sampling, True, ask).run()
        return shown.getvalue()

    talk.lake = lake
    return talk


def test_an_answer_grows_keeps_its_history_and_cannot_steer_the_terminal(talk):
    speaker = StandIn()
    said = talk(["", "one", "two", "/new", "three"], speaker, temperature=0.0, seed=4)
    assert (
        "The small cat\\x1b[31m!\n" in said
        and "\x1b" not in said
        and "4 tokens, 8.0 tokens/s, 67% of 3 drafted tokens accepted" in said
    )
    histories = [[message.content for message in each.messages] for each in speaker.asked]
    assert histories == [["Be brief.", "one"], ["Be brief.", "one", "The small cat\x1b[31m!", "two"], ["Be brief.", "three"]]
    assert (speaker.asked[0].temperature, speaker.asked[0].top_p, speaker.asked[0].seed) == (0.0, 0.9, 4)


def test_settings_are_changed_and_wrong_ones_are_one_line(talk):
    speaker = StandIn()
    said = talk(
        ["/temperature", "/temperature 0.3", "/top_p 7", "/max_tokens 5", "/draft off", "/system Be kind.", "/nope", "hi"],
        speaker,
    )
    assert (
        "temperature 0.7\ntemperature 0.3\n" in said
        and "top_p 7: input should be less than or equal to 1" in said
        and "Ctrl-D" in said
    )
    asked = speaker.asked[0]
    assert (asked.temperature, asked.max_tokens, asked.draft, asked.messages[0].content) == (0.3, 5, False, "Be kind.")


def test_only_a_command_is_no_message(talk):
    messages = ["/etc/hosts is broken, why?", "/tmp/a", "/new plan for the garden", "/usr: what is it", "/up, up and away"]
    messages += [" /up", "/help me with\nthis"]
    speaker = StandIn()
    said = talk([*messages, "/dwon it lies", "/temprature 0.3", "/nope", "/draft a letter", "/quit", "never"], speaker)
    assert [question.messages[-1].content for question in speaker.asked] == [text.strip() for text in messages]
    assert "there is no command /dwon; with a space before it, it is a message\n/up, /down" in said
    assert all(f"there is no command /{name};" in said for name in ("temprature", "nope")) and "the drafter is" not in said


def test_the_system_prompt_is_cleared(talk):
    speaker = StandIn()
    assert "there is no system prompt" in talk(['/system ""', "hi"], speaker)
    assert [message.role for message in speaker.asked[0].messages] == ["user"]


def test_ctrl_c_stops_an_answer_and_ctrl_d_ends(talk, monkeypatch):
    speaker = StandIn(lines=[ANSWER[0], KeyboardInterrupt(), DONE], waits=True)
    said = talk([KeyboardInterrupt(), "hi"], speaker)
    assert said.startswith("Ctrl-D ends\n") and speaker.stopped == 1 and "stopped" in said.splitlines()[-1]


def test_a_second_ctrl_c_while_an_answer_stops_ends(talk):
    speaker = StandIn(lines=[ANSWER[0], KeyboardInterrupt(), KeyboardInterrupt(), DONE])
    with pytest.raises(KeyboardInterrupt):
        talk(["hi"], speaker)
    assert speaker.stopped == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_processes_ends_the_conversation(talk, number):
    before = signal.signal(number, signal.default_int_handler)  # as the command sets it (pipelines/cli.py)
    try:
        with pytest.raises(SystemExit) as end:
            talk([lambda: os.kill(os.getpid(), number)], StandIn())
        assert end.value.code == 128 + number and signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_two_answer_with_histories_of_their_own_and_the_same_seed(talk):
    one, two = StandIn(), StandIn("org/model", workload="", lines=[{"error": "the message has 9 tokens"}])
    said = talk(["hi", "/up", "/up 1 good", "/down 2"], one, two)
    assert "1 champion 1 of tutor" in said and "2 org/model" in said and "the message has 9 tokens" in said
    assert (one.asked[0].seed == two.asked[0].seed and "whose answer?" in said) or "there is no answer yet" in said
    assert "the next run of tutor reads it with thumb up" in said and "there is no answer yet" in said
    [path] = (talk.lake.root / "chats/tutor").rglob("*.jsonl")
    assert '"comment": "good"' in path.read_text()


def test_lines_are_read_ahead_while_an_answer_grows():
    class Asks:
        def __init__(self):
            self.lines, self.events = ["hi"], []

        def __call__(self, prompt):
            self.events.append("asked")
            if not self.lines:
                raise EOFError
            return self.lines.pop()

        @contextmanager
        def ahead(self):
            self.events.append("ahead")
            yield
            self.events.append("over")

    asks = Asks()
    TerminalChat(Console(file=io.StringIO()), None, [StandIn()], "", {}, True, asks).run()
    assert asks.events == ["asked", "ahead", "over", "asked"]


CHILD = """
import json, sys, time
from pipelines.asking.conversation import TypedMessages

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
