"""Evaluation suites as a recipe names them: each file by itself, with the first task that can score all of its items. Without
one, items are only kept out of training.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from resources.composing import EvalSettings, EvalSuiteError, build_eval_suite
from resources.inspecting import SourceProposal, name_of
from resources.sources import SourceError, local_path

FITTING = ("auto", "ifeval", "unit_tests", "json_schema", "regex", "number", "exact")
"""Tasks that need no judge and no choice by a person, the most particular first."""
SHORT = 40
"""Most characters of an answer that a model can be expected to say word for word."""
MOST_FILES = 12


def suites_of(source: SourceProposal) -> dict[str, dict[str, str]]:
    """The suites of one source. A folder that is not on this machine is one pattern, without a task."""
    uri, local = source.uri, local_path(source.uri)
    if source.look.first_uri == uri or "*" in uri or (local is not None and Path(local).is_file()):
        return {source.name: _suite(uri, local is not None and Path(local).is_file())}
    listed = Path(local).iterdir() if local is not None and Path(local).is_dir() else ()
    files = sorted(path for path in listed if path.is_file() and path.name[0] != ".")
    if not 0 < len(files) <= MOST_FILES:
        return {source.name: {"uri": f"{uri.rstrip('/')}/*"}}
    named: dict[str, dict[str, str]] = {}
    for path in files:
        name = name_of(path.name)
        named[name if name not in named else f"{name}-{len(named)}"] = _suite(str(path), True)
    return named


def _suite(uri: str, is_local: bool) -> dict[str, str]:
    task = next((task for task in FITTING if _fits(uri, task)), None) if is_local else None
    return {"uri": uri} if task in (None, "auto") else {"uri": uri, "task": task}


def _fits(uri: str, task: str) -> bool:
    """Whether the task can score every item of the file."""
    with TemporaryDirectory(prefix="millrace-init-") as folder:
        try:
            items = build_eval_suite({"suite": EvalSettings(uri=uri, task=task)}, Path(folder))["suite"]
        except (EvalSuiteError, SourceError):
            return False
        asked = [json.loads(line) for line in (Path(folder) / "tasks.jsonl").read_text(encoding="utf-8").splitlines()]
    return len(asked) == items > 0 and (task != "exact" or all(len(str(item["answer"])) <= SHORT for item in asked))
