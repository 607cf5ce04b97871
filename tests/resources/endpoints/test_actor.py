"""Who acts: a configured name first, never an unknown one, and only text that shows as one line."""

import os
import pwd

import pytest

from resources.endpoints import endpoint_log
from resources.endpoints.endpoint_log import Actor, ActorError


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """Neither the environment nor git nor the system knows anybody."""
    for name in ("MILLRACE_USER", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(endpoint_log, "_git_email", lambda: "")

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_nobody_known_is_refused_with_how_to_set_it():
    with pytest.raises(ActorError, match="set MILLRACE_USER to your name"):
        Actor.of_command()


def test_the_order_in_which_a_person_is_looked_for(monkeypatch):
    monkeypatch.setenv("USER", "env")
    assert (Actor.of_command().name, Actor.of_command().identity_from) == ("env", "USER")
    monkeypatch.setattr(pwd, "getpwuid", lambda number: pwd.struct_passwd(("root", "x", 0, 0, "", "/", "/bin/sh")))
    assert (Actor.of_command().name, Actor.of_command().identity_from) == ("root", "system account")
    monkeypatch.setattr(endpoint_log, "_git_email", lambda: "ana@example.org")
    assert (Actor.of_command().name, Actor.of_command().identity_from) == ("ana@example.org", "git config user.email")
    monkeypatch.setenv("MILLRACE_USER", " Ana Müller ")
    assert (Actor.of_command().name, Actor.of_command().identity_from) == ("Ana Müller", "MILLRACE_USER")
    monkeypatch.setenv("MILLRACE_USER", "  ")
    assert Actor.of_command().identity_from == "git config user.email"


def test_git_is_asked_for_its_email(monkeypatch, tmp_path):
    monkeypatch.undo()
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n\temail = bo@example.org\n")
    monkeypatch.delenv("MILLRACE_USER", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.fspath(config))
    monkeypatch.chdir(tmp_path)
    assert Actor.of_command().name == "bo@example.org"
    monkeypatch.setenv("PATH", "/nowhere")
    assert Actor.of_command().identity_from == "system account"


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31mred", "a\x00b", "a\u202eb", "a\u2028b", "\udcff", "a\tb", "\u200bz"])
def test_text_that_would_not_show_as_one_line_is_refused(monkeypatch, text):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    with pytest.raises(ActorError, match="--reason holds control characters"):
        Actor.of_command(f"x{text}x")
    if "\x00" not in text:
        monkeypatch.setenv("MILLRACE_USER", f"x{text}x")
        with pytest.raises(ActorError, match="MILLRACE_USER holds control characters"):
            Actor.of_command()


def test_any_language_and_emoji_are_text_and_there_is_an_end_to_it(monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    assert Actor.of_command(" перечитано 👩\u200d🔬 ").reason == "перечитано 👩\u200d🔬"
    with pytest.raises(ActorError, match="shorten it"):
        Actor.of_command("x" * 2_001)
