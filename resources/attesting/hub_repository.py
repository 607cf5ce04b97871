"""A repository of the Hugging Face Hub to which releases are pushed.

    repository = HubRepository.of("hf://company/tutor")       # token: HF_TOKEN, and nowhere else; HF_ENDPOINT: another Hub
    repository.send({path: file for path in repository.missing(files)}, "weights")

A missing repository is created as a private one. Each call of `send` is one commit; large files are uploaded before it, one by
one, and the Hub keeps those of a push that was stopped. Imports huggingface_hub, which transformers needs too, on first use.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.releasing.release import ReleaseError

SCHEME = "hf://"
TOKEN, ENDPOINT = "HF_TOKEN", "HF_ENDPOINT"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class HubRepository:
    name: str
    """ORG/REPOSITORY."""
    token: str

    @classmethod
    def of(cls, to: str) -> HubRepository:
        name = to.removeprefix(SCHEME).strip("/")
        if not _NAME.fullmatch(name):
            raise ReleaseError(f"{to} names no repository of the Hub: name hf://ORG/REPOSITORY")
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            raise ReleaseError(f"there is no token to push to {to} with: set {TOKEN} to one that may write there")
        return cls(name, token)

    def missing(self, files: Mapping[str, Path]) -> list[str]:
        """Makes the repository where there is none."""
        with self._explained():
            self._api().create_repo(self.name, private=True, exist_ok=True)
            there = {entry.path: entry for entry in self._api().list_repo_tree(self.name, recursive=True)
                     if hasattr(entry, "blob_id")}
        return [path for path, file in files.items() if path not in there or not _is_same(there[path], file)]

    def send(self, files: Mapping[str, Path], about: str) -> None:
        from huggingface_hub import CommitOperationAdd

        added = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=str(file)) for path, file in files.items()]
        with self._explained():
            for each in added:
                self._api().preupload_lfs_files(self.name, additions=[each])
            self._api().create_commit(self.name, operations=added, commit_message=f"millrace push: {about}")

    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=os.environ.get(ENDPOINT) or None, token=self.token)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the Hub as one sentence. Neither the token nor a body of an answer is part of it."""
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            yield
        except (HfHubHTTPError, RuntimeError) as error:  # a failed upload is a RuntimeError with the Hub's answer as its cause
            answered = error if isinstance(error, HfHubHTTPError) else error.__cause__
            status = getattr(getattr(answered, "response", None), "status_code", None)
            remedy = {401: f"{TOKEN} is not valid", 403: f"{TOKEN} may not write there", 404: "there is no such organisation",
                      413: "a file is larger than the Hub takes", 429: "too many requests: push again later"}
            raise ReleaseError(f"the Hub refuses the push to {self.name} (status {status}): "
                               f"{remedy.get(status, 'push again later; what was sent is kept')}") from error
        except OfflineModeIsEnabled as error:
            raise ReleaseError("HF_HUB_OFFLINE is set, so nothing can be pushed to the Hub: unset it") from error
        except (OSError, *HfHubHTTPError.__bases__) as error:  # its bases: the errors of whichever library speaks HTTP
            raise ReleaseError(f"the Hub cannot be reached ({type(error).__name__}): push again later; what was sent is "
                               "kept") from error


def _is_same(entry: Any, file: Path) -> bool:
    """Whether the repository's file has this content: by sha256 for large files, else by git's id of the blob."""
    if entry.size != file.stat().st_size:
        return False
    with file.open("rb") as content:
        if entry.lfs is not None:
            return entry.lfs.sha256 == hashlib.file_digest(content, "sha256").hexdigest()
        return entry.blob_id == hashlib.sha1(b"blob %d\0" % entry.size + content.read()).hexdigest()
