"""Whether the base model has another version than the one that was imported: in its directory, or on the Hub.

    then, now = base_digests(lake, manifest, "/models/mine")        # (None, None) where it cannot change
    then, now = hub_commits(lake, manifest, "Qwen/Qwen3-0.6B", now)      # commits; (None, None) where nothing is known

Files are hashed only if one is newer than the import, each once: its hash is kept by its name, size and time. A look hashes
for a limited time, so of a large model it says that nothing changed until later looks have hashed the rest.

The Hub is asked at most once an hour for each workload, whatever it answers, and never where HF_HUB_OFFLINE is set. A commit
that changes no file of the model, such as one of the README, counts as none. An unreachable Hub counts as one without news.
"""

from __future__ import annotations

import hashlib
import time
from datetime import datetime, timedelta
from pathlib import Path

from model_ops.files import hub
from model_ops.jobs import ModelError
from resources.digests import AnswerCache
from resources.lake import LakeLayout
from resources.manifests import File, Manifest, files_digest, files_under

HASHES_S = 15.0
"""Seconds after which a look begins no further file: a tick of a sensor may take 60 s."""
HASHED_BYTES = 20_000_000_000
"""Largest file that is hashed within a look. Of a larger one, a new time counts as a new file."""
MADE_BY = "base_revision 2"


def stamp_of(directory: Path) -> str:
    """Names, sizes and times of a directory's files, hashed. "" for a directory that is away."""
    try:
        found = sorted(
            (path.relative_to(directory).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
            for path in directory.rglob("*")
            if path.is_file()
        )
    except OSError:
        return ""
    return hashlib.sha256(repr(found).encode()).hexdigest() if found else ""


def hashed_so_far(lake: LakeLayout, workload: str) -> str:
    """Changes when a look has hashed further files."""
    return AnswerCache(lake, f"base/{workload}", MADE_BY).digest()


def base_digests(lake: LakeLayout, manifest: Manifest | None, directory: str) -> tuple[str | None, str | None]:
    """Digest of the files that the base was imported from, and of those that are there now, as far as that is known."""
    place = Path(directory)
    known = (
        next((item.digest for item in manifest.inputs if item.kind == "external" and item.name == directory), None)
        if manifest
        else None
    )
    if known is None or manifest is None or not directory or not place.is_dir():
        return None, None
    paths = files_under(place)
    if max((path.stat().st_mtime for path in paths), default=0.0) <= manifest.created_at.timestamp():
        return known, known
    memory = AnswerCache(lake, f"base/{manifest.name.split('/')[0]}", MADE_BY)
    until, files, hashes = time.monotonic() + HASHES_S, [], {}
    for path in paths:
        stat, relative = path.stat(), path.relative_to(place).as_posix()
        key = f"{relative}:{stat.st_size}:{stat.st_mtime_ns}"
        sha256 = memory.get(key)
        if sha256 is None and time.monotonic() < until:
            sha256 = _sha256(path, key, stat.st_size)
        if sha256 is not None:
            hashes[key] = sha256
            files.append(File(path=relative, bytes=stat.st_size, sha256=sha256))
    memory.keep(hashes)
    return known, files_digest(files) if len(files) == len(paths) else known


def _sha256(path: Path, key: str, size: int) -> str:
    if size > HASHED_BYTES:
        return hashlib.sha256(key.encode()).hexdigest()
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


LOOKS_EVERY = timedelta(hours=1)
HUB_MADE_BY = "hub_base 1"
ASKED, SEEN = "asked_at", "commit"


def hub_commits(
    lake: LakeLayout, manifest: Manifest | None, repository: str, now: datetime, branch: str = ""
) -> tuple[str | None, str | None]:
    """The commit that the base was imported from, and the newest one of the branch as far as it is known.

    branch: "" for the default branch; a commit never changes, so nothing is asked. A base that was imported before commits
    were recorded has none.
    """
    then = manifest.config.get("revision") if manifest is not None and manifest.config.get("model") == repository else None
    if manifest is None or not hub.is_commit(then) or hub.is_commit(branch) or hub.is_offline():
        return None, None
    memory = AnswerCache(lake, f"hub/{manifest.name.split('/')[0]}", HUB_MADE_BY)
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
        found = hub.hub_model(repository, branch or None)
        answers = {SEEN: found.commit, _files(found.commit): found.files}
        if found.commit != then and _files(then) not in kept:
            answers[_files(then)] = hub.hub_model(repository, then).files
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
