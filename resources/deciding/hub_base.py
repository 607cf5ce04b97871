"""Whether the Hub has another version of the base model than the one that was imported.

    then, now = hub_commits(lake, manifest, "Qwen/Qwen3-0.6B", now)      # commits; (None, None) where nothing is known

The Hub is asked at most once an hour for each workload, whatever it answers, and never where HF_HUB_OFFLINE is set. A commit
that changes no file of the model, such as one of the README, counts as none. A Hub that is away is as one that has nothing new.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from model_ops.errors import ModelError
from model_ops.models.hub_model import hub_model, is_commit, is_offline
from resources.artefacts.manifest import Manifest
from resources.artefacts.remembered import Remembered
from resources.lake import Lake

LOOKS_EVERY = timedelta(hours=1)
MADE_BY = "hub_base 1"
ASKED, SEEN = "asked_at", "commit"


def hub_commits(lake: Lake, manifest: Manifest | None, repository: str, now: datetime,
                branch: str = "") -> tuple[str | None, str | None]:
    """The commit that the base was imported from, and the newest one of the branch as far as it is known.

    branch: "" for the default branch; a commit never changes, so nothing is asked. A base that was imported before commits
    were recorded has none.
    """
    then = manifest.config.get("revision") if manifest is not None and manifest.config.get("model") == repository else None
    if manifest is None or not is_commit(then) or is_commit(branch) or is_offline():
        return None, None
    memory = Remembered(lake, f"hub/{manifest.name.split('/')[0]}", MADE_BY)
    kept = {key: value for key in (ASKED, SEEN, _files(then), _files(memory.get(SEEN))) if (value := memory.get(key))}
    if _is_due(kept.get(ASKED), now):
        kept |= {ASKED: now.isoformat(), **_asked(repository, branch, then, kept)}
        memory.keep(kept)
    seen = kept.get(SEEN)
    before, after = kept.get(_files(then)), kept.get(_files(seen))
    return then, then if not seen or (before and before == after) else seen


def _asked(repository: str, branch: str, then: str, kept: dict[str, str]) -> dict[str, str]:
    """What the Hub says; nothing if it is away. The files of the commit `then` are asked for once, if another one is there."""
    try:
        found = hub_model(repository, branch or None)
        answers = {SEEN: found.commit, _files(found.commit): found.files}
        if found.commit != then and _files(then) not in kept:
            answers[_files(then)] = hub_model(repository, then).files
    except ModelError:
        return {}
    return answers


def _is_due(asked_at: str | None, now: datetime) -> bool:
    """Also where the last look seems to be in the future: a clock was wrong."""
    try:
        asked = datetime.fromisoformat(asked_at or "")
        return not now - LOOKS_EVERY < asked <= now
    except (ValueError, TypeError):
        return True


def _files(commit: str | None) -> str:
    return f"files {commit}"
