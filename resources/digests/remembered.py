"""Caches, in <lake>/.remembered/, what was computed from files that never change. `code` identifies the code that computed
the answers: answers of other code are not used. The folder can be deleted at any time.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress

from model_ops.files import write_text
from resources.lake import LakeLayout


class AnswerCache:
    """The cached answers under one name."""

    def __init__(self, lake: LakeLayout, name: str, code: str):
        self._path, self._code = lake.root / ".remembered" / f"{name}.json", code
        self._answers: dict[str, str] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            if stored["made_by"] == code:
                self._answers = {str(key): str(answer) for key, answer in stored["answers"].items()}

    def get(self, key: str) -> str | None:
        return self._answers.get(key)

    def digest(self) -> str:
        """Of all answers: changes when an answer is added or dropped."""
        return hashlib.sha256(json.dumps(self._answers, sort_keys=True).encode()).hexdigest()

    def keep(self, answers: Mapping[str, str]) -> None:
        """Keeps these answers; drops all others."""
        if dict(answers) != self._answers:
            self._answers = dict(answers)
            with suppress(OSError):
                write_text(self._path, json.dumps({"made_by": self._code, "answers": self._answers}))


def partition_key(files: Iterable[str], *more: str) -> str:
    """sha256 over the names of files and what else an answer depends on. Delta never writes a file's name again."""
    return hashlib.sha256("\0".join([*more, "", *sorted(files)]).encode()).hexdigest()
