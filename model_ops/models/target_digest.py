"""Which weights and which vocabulary a drafter belongs to, as digests that anyone with the target's directory can compute.

    target_digest(Path("models/quantized"))       # of the weights: another revision of the target has another one
    vocabulary_digest(Path("models/quantized"))   # of the tokenizer's ids: what a token id means
    names_of(Path("models/quantized"))            # under what digests a gateway's log may name these weights

No torch. Files whose sha256 a manifest.json beside them gives are not read again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SHORTEST_NAME = 12
"""Hex digits by which a log may abbreviate a digest: those of an artefact's version."""


def target_digest(directory: Path) -> str:
    """sha256 over the lines `<sha256>  <name>` of a directory's safetensors files; '' where it has none."""
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
    """(name, bytes, modification time in ns) of each safetensors file: a cheap key for caches of one unfinished job.

    Files that are rewritten with the same bytes get another key; `target_digest` is the identity of the weights.
    """
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(directory.glob("*.safetensors"))]


def vocabulary_digest(directory: Path) -> str:
    """sha256 over what each token id means by tokenizer.json; '' where there is none that can be read.

    Templates, normalisation and pre-tokenization are not in it: two tokenizers that cut text differently into the same
    ids give a drafter the same vocabulary.
    """
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


def names_of(directory: Path) -> frozenset[str]:
    """The digests that mean these very weights: of the weights, and of the artefact and its version in a lake."""
    manifest = _manifest(directory)
    given = (target_digest(directory), manifest.get("digest"), manifest.get("version"))
    return frozenset(name for name in given if isinstance(name, str) and name)


def is_named(names: frozenset[str], logged: str | None) -> bool:
    """Whether a log's digest is one of `names`, whole or by its first digits, with or without `sha256:` before it."""
    written = (logged or "").removeprefix("sha256:").lower()
    return len(written) >= SHORTEST_NAME and any(name.startswith(written) for name in names)


def _manifest(directory: Path) -> dict[str, Any]:
    return _read_object(directory / "manifest.json")


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is no such file or it is no object (`millrace verify` says so in words)."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
