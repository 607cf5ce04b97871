"""The commit that an import from the Hugging Face Hub takes, also without a network: one request with a short time limit.
HF_ENDPOINT names another Hub."""

import os
import re
from contextlib import suppress
from pathlib import Path

from model_ops.files.template_files import FOLDER

TIMEOUT_S = 5.0
"""Seconds for the connection, and again for each part of the answer."""
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", f"{FOLDER}/*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
"""Files that an import takes."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str | None) -> bool:
    return bool(revision and _COMMIT.fullmatch(revision))


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set, by the words that huggingface_hub takes for yes."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def imported_commit(name: str, revision: str | None = None) -> str | None:
    """The commit that an import of this revision takes: the Hub's, or, where it cannot be asked, that of the local cache. None
    if neither knows it."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    if not is_offline():
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        # errors of the HTTP library are bases of the class, and an answer of another form raises one of the last three; if the
        # cache has no copy, the import says what is wrong
        with suppress(*HfHubHTTPError.__bases__, OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError):
            commit = api.model_info(name, revision=revision, timeout=TIMEOUT_S).sha
            if is_commit(commit):
                return commit
    try:
        cached = Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=list(MODEL_FILES))).name
    except (OSError, ValueError):
        return None
    return cached if is_commit(cached) else None
