"""Who acts on an endpoint or a lake, and why: recorded in every entry of an endpoint's log.

The person's name is, in this order: MILLRACE_USER, git's user.email, the system account's name. The entry records the source
of the name, because only MILLRACE_USER is set for this purpose.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import unicodedata
from contextlib import suppress
from dataclasses import dataclass

from model_ops.jobs import Misuse

LONGEST_NAME = 200
LONGEST_REASON = 2_000
JOINERS = "\u200c\u200d"
"""Invisible joiners that some languages and emoji need."""


class ActorError(Misuse):
    """The person is unknown, or name or reason cannot be shown in one line."""


@dataclass(frozen=True)
class Actor:
    """Who acts, and why."""

    name: str
    identity_from: str
    """Where the name comes from, such as `MILLRACE_USER`."""
    reason: str = ""

    @classmethod
    def of_command(cls, reason: str | None = None, option: str = "--reason") -> Actor:
        """The person who runs this command. option: with which the reason was given.

        Raises ActorError if nothing names a person, or if name or reason contain control characters or are too long.
        """
        name, source = _person()
        return cls(_one_line(source, name, LONGEST_NAME), source, _one_line(option, reason or "", LONGEST_REASON))

    @classmethod
    def of_form(cls, name: str, identity_from: str, reason: str = "") -> Actor:
        """A person who gave a name in a form. identity_from: where, such as `Dagster UI`. Raises ActorError as `of_command`
        does, and for an empty name."""
        if not name.strip():
            raise ActorError("the name is empty, and a decision records who took it: give your name")
        return cls(_one_line("the name", name, LONGEST_NAME), identity_from, _one_line("the reason", reason, LONGEST_REASON))


PIPELINE = Actor("pipeline", "pipeline")
AUTOMATIC = Actor("recipe: approval automatic", "recipe")


def _person() -> tuple[str, str]:
    if name := os.environ.get("MILLRACE_USER", "").strip():
        return name, "MILLRACE_USER"
    if name := _git_email():
        return name, "git config user.email"
    with suppress(KeyError):  # a container may run under a uid without a name
        return pwd.getpwuid(os.getuid()).pw_name, "system account"
    if name := os.environ.get("USER", "").strip():
        return name, "USER"
    raise ActorError("nothing says who you are, and an approval records who gave it: set MILLRACE_USER to your name")


def _git_email() -> str:
    try:
        done = subprocess.run(["git", "config", "--get", "user.email"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _one_line(what: str, text: str, longest: int) -> str:
    text = text.strip()
    if any(_hides(character) for character in text):
        raise ActorError(f"{what} holds control characters, such as a line break: give plain text in one line")
    if len(text) > longest:
        raise ActorError(f"{what} has {len(text):,} characters, at most {longest:,} are allowed: shorten it")
    return text


def _hides(character: str) -> bool:
    """Whether a character changes how a line is shown, or cannot be shown or stored at all."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in JOINERS
