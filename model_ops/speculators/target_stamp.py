"""Records in a drafter's config.json which target it was trained for: target_digest and target_vocabulary_digest.

    stamp(directory, target)                       # writes both into config.json, also in the speculators layout
    sentences = mismatches(config, target)         # [] if the drafter was trained for these weights

Servers ignore the two fields. A drafter of another revision of its target loads without an error and drafts badly.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ops.files import target_digest, vocabulary_digest

WEIGHTS, VOCABULARY = "target_digest", "target_vocabulary_digest"


def stamp(directory: Path, target: Path) -> None:
    """Adds the digests of `target` to every config.json of a drafter's directory."""
    digests = {WEIGHTS: target_digest(target), VOCABULARY: vocabulary_digest(target)}
    for path in (directory / "config.json", *sorted(directory.glob("*/config.json"))):
        config = {**json.loads(path.read_text()), **{name: digest for name, digest in digests.items() if digest}}
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def mismatches(config: Mapping[str, Any], target: Path) -> list[str]:
    """Evidence that a drafter was trained for another target, one sentence each; empty if it names no target."""
    sentences = []
    for name, digest, what in ((WEIGHTS, target_digest, "weights"), (VOCABULARY, vocabulary_digest, "vocabulary")):
        trained_for = config.get(name)
        if trained_for is None:
            continue
        own = digest(target)
        if own and own != trained_for:
            sentences.append(
                f"{name} is {str(trained_for)[:12]}, but the digest of the target's {what} is {own[:12]}: the "
                "drafter was trained for another revision of the target"
            )
    return sentences
