"""A model's repository on the Hugging Face Hub: its current commit, and whether the files of two commits are the same.

    found = hub_model("Qwen/Qwen3-0.6B")             # HubModel(commit, files); of a branch, tag or commit: revision=...
    is_offline()                                     # whether HF_HUB_OFFLINE forbids to ask
    imported_commit("Qwen/Qwen3-0.6B")               # the commit that an import takes now, also without a network

One request, with a short time limit. HF_ENDPOINT names another Hub. Imports huggingface_hub on first use, and no torch.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_ops.files.template_files import FOLDER
from model_ops.jobs import ModelError

TIMEOUT_S = 5.0
"""Seconds for the connection, and again for each part of the answer."""
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", f"{FOLDER}/*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
"""Files that an import takes (TAKEN of model_ops/operations/base_directory.py): a commit without changes of them changes no
model."""
NO_ANSWER_OF_A_HUB = (TypeError, KeyError, AttributeError)
"""What the library raises for an answer of another form."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubModel:
    """One commit of a model on the Hub."""

    commit: str
    """40 hex digits."""
    files: str
    """A digest over the names and contents of the files that an import takes."""


def is_commit(revision: str | None) -> bool:
    return bool(revision and _COMMIT.fullmatch(revision))


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set, by the words that huggingface_hub takes for yes."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def hub_model(name: str, revision: str | None = None, timeout_s: float = TIMEOUT_S) -> HubModel:
    """The model at a branch, tag or commit; None: at the default branch. Raises ModelError if the Hub does not tell."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        found = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None).model_info(
            name, revision=revision, timeout=timeout_s, files_metadata=True
        )
        contents = sorted((each.rfilename, _content(each)) for each in found.siblings or () if _is_taken(each.rfilename))
    except (OSError, RuntimeError, ValueError, *NO_ANSWER_OF_A_HUB, *HfHubHTTPError.__bases__) as error:  # the HTTP library's
        raise ModelError(
            f"the Hugging Face Hub does not tell the current commit of {name} ({type(error).__name__}): check the "
            "network, the id, and access to it"
        ) from error
    if not is_commit(found.sha):
        raise ModelError(f"the Hugging Face Hub names no commit of {name}: check HF_ENDPOINT")
    return HubModel(str(found.sha), hashlib.sha256(repr(contents).encode()).hexdigest())


def imported_commit(name: str, revision: str | None = None) -> str | None:
    """The commit that an import of this revision takes: the Hub's, or, where it cannot be asked, that of the local cache. None
    if neither knows it."""
    if not is_offline():
        try:
            return hub_model(name, revision).commit
        except ModelError:
            pass  # the import says what is wrong, if the cache has no copy
    from huggingface_hub import snapshot_download

    try:
        cached = Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=list(MODEL_FILES))).name
    except (OSError, ValueError):
        return None
    return cached if is_commit(cached) else None


def _content(file: Any) -> str:
    return file.lfs.sha256 if file.lfs is not None else file.blob_id or ""


def _is_taken(path: str) -> bool:
    return any(path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern) for pattern in MODEL_FILES)
