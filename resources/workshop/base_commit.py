"""At which commit of the Hub a base model is imported: a base stays what it is until somebody asks for another.

    commit_to_import(registry, "Qwen/Qwen3-0.6B", branch="", wanted=None, ask=imported_commit)     # 40 hex digits, or None
    outside_name("Qwen/Qwen3-0.6B", "v2")            # "Qwen/Qwen3-0.6B@v2": the name of the manifest's external input
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model_ops.models.hub_model import is_commit
from resources.artefacts.manifest import artefact_version
from resources.artefacts.registry import Registry
from resources.artefacts.source_digest import source_digest

NAME, OPERATION = "base_model", "import_base"


def commit_to_import(registry: Registry, model: str, branch: str, wanted: str | None,
                     ask: Callable[[str, str | None], str | None]) -> str | None:
    """The commit of the wanted branch, tag or commit; without, the one that the current base was imported from; of a new base,
    or of another branch than the current base's, the newest.

    branch: the recipe's: a branch, a tag or a commit; "" for the default branch. ask: (model, revision) -> its commit. None for
    a directory, where no commit can be known, and for a base that this code imported before commits were recorded: it stays
    valid.
    """
    if Path(model).is_dir():
        return None
    if wanted:
        return wanted if is_commit(wanted) else ask(model, wanted) or wanted
    if is_commit(branch):
        return branch
    made = registry.current("model", NAME) if registry.exists("model", NAME) else None
    if made is not None and made.op == OPERATION and outside_name(model, branch) in {item.name for item in made.inputs}:
        known = made.config.get("revision")
        code = source_digest(f"model_ops/operations/{OPERATION}.py")
        if known or artefact_version(OPERATION, code, made.config, made.inputs) == made.version:
            return known
    return ask(model, branch or None) or branch or None


def outside_name(model: str, branch: str) -> str:
    """A base model as an external input is named: with the branch, if the recipe names one."""
    return f"{model}@{branch}" if branch else model
