"""Digests of a target's weights and vocabulary, computed from its directory without torch, to match drafters and logs to it.
Files whose sha256 is in the directory's manifest.json are not read again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHORTEST_NAME = 12
"""Fewest hex digits of an abbreviated digest in a log; an artefact's version has as many."""


def target_digest(directory: Path) -> str:
    """sha256 over the lines `<sha256>  <name>` of a directory's safetensors files; '' if it has none."""
    manifest = _manifest(directory)
    listed = {entry.get("path"): entry for entry in manifest.get("files", []) if isinstance(entry, dict)}
    lines = []
    for path in sorted(directory.glob("*.safetensors")):
        entry = listed.get(path.name, {})
        digest = entry.get("sha256") if entry.get("bytes") == path.stat().st_size else None
        if digest is None:
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        lines.append(f"{digest}  {path.name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def weight_file_stamps(directory: Path) -> list[tuple[str, int, int]]:
    """(name, bytes, modification time in ns) of each safetensors file: a cheap key for caches of one unfinished job. Files that
    are rewritten with the same bytes get another key; `target_digest` is the identity of the weights."""
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(directory.glob("*.safetensors"))]


def vocabulary_digest(directory: Path) -> str:
    """sha256 over the vocabulary and added tokens of tokenizer.json; '' if it is missing or invalid. It does not cover
    templates, normalisation and pre-tokenization: for a drafter, two tokenizers with the same ids have the same vocabulary,
    also if they split text differently."""
    content = _read_object(directory / "tokenizer.json")
    vocabulary = (content.get("model") or {}).get("vocab")
    if vocabulary is None:
        return ""
    if isinstance(vocabulary, dict):
        pieces = sorted((place, piece) for piece, place in vocabulary.items())
    else:  # Unigram: a list of [piece, score], the place is the id
        pieces = [(place, entry[0]) for place, entry in enumerate(vocabulary)]
    added = sorted((token["id"], token["content"]) for token in content.get("added_tokens") or [])
    return hashlib.sha256(json.dumps([pieces, added]).encode()).hexdigest()


@dataclass(frozen=True)
class WeightNames:
    """Digests that identify weights: of the weights, and digest and version of the artefact in a lake."""

    digests: frozenset[str]

    @classmethod
    def of(cls, directory: Path) -> WeightNames:
        manifest = _manifest(directory)
        given = (target_digest(directory), manifest.get("digest"), manifest.get("version"))
        return cls(frozenset(name for name in given if isinstance(name, str) and name))

    def has(self, logged: str | None) -> bool:
        """Whether a log's digest is one of these, in full or abbreviated, with or without the prefix `sha256:`."""
        written = (logged or "").removeprefix("sha256:").lower()
        return len(written) >= SHORTEST_NAME and any(name.startswith(written) for name in self.digests)


def _manifest(directory: Path) -> dict[str, Any]:
    return _read_object(directory / "manifest.json")


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; {} if the file is missing or not a JSON object (`millrace verify` reports that)."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
