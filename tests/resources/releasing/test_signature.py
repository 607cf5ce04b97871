"""Who acts: a configured name first, never an unknown one, and only text that shows as one line."""

import os
import pwd

import pytest

from resources.releasing import signature
from resources.releasing.signature import SignatureError, sign


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """Neither the environment nor git nor the system knows anybody."""
    for name in ("MILLRACE_USER", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(signature, "_git_email", lambda: "")

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_nobody_known_is_refused_with_how_to_set_it():
    with pytest.raises(SignatureError, match="set MILLRACE_USER to your name"):
        sign()


def test_the_order_in_which_a_person_is_looked_for(monkeypatch):
    monkeypatch.setenv("USER", "env")
    assert (sign().name, sign().identity_from) == ("env", "USER")
    monkeypatch.setattr(pwd, "getpwuid", lambda number: pwd.struct_passwd(("root", "x", 0, 0, "", "/", "/bin/sh")))
    assert (sign().name, sign().identity_from) == ("root", "system account")
    monkeypatch.setattr(signature, "_git_email", lambda: "ana@example.org")
    assert (sign().name, sign().identity_from) == ("ana@example.org", "git config user.email")
    monkeypatch.setenv("MILLRACE_USER", " Ana Müller ")
    assert (sign().name, sign().identity_from) == ("Ana Müller", "MILLRACE_USER")
    monkeypatch.setenv("MILLRACE_USER", "  ")
    assert sign().identity_from == "git config user.email"


def test_git_is_asked_for_its_email(monkeypatch, tmp_path):
    monkeypatch.undo()
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n\temail = bo@example.org\n")
    monkeypatch.delenv("MILLRACE_USER", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.fspath(config))
    monkeypatch.chdir(tmp_path)
    assert sign().name == "bo@example.org"
    monkeypatch.setenv("PATH", "/nowhere")
    assert sign().identity_from == "system account"


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31mred", "a\x00b", "a\u202eb", "a\u2028b", "\udcff", "a\tb", "\u200bz"])
def test_text_that_would_not_show_as_one_line_is_refused(monkeypatch, text):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    with pytest.raises(SignatureError, match="--reason holds control characters"):
        sign(f"x{text}x")
    if "\x00" not in text:
        monkeypatch.setenv("MILLRACE_USER", f"x{text}x")
        with pytest.raises(SignatureError, match="MILLRACE_USER holds control characters"):
            sign()


def test_any_language_and_emoji_are_text_and_there_is_an_end_to_it(monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    assert sign(" перечитано 👩\u200d🔬 ").reason == "перечитано 👩\u200d🔬"
    with pytest.raises(SignatureError, match="shorten it"):
        sign("x" * 2_001)
