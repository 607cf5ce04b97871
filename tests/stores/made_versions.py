"""Artefacts with a small and a large file, made in a lake."""

import os

from resources.artefacts.registry import Registry

LARGE = os.urandom(400_000)


def made(lake, name="sft_dataset", config=None, content=LARGE, kind="dataset"):
    registry = Registry(lake, "tutor")
    draft = registry.draft(kind, name, op="t", sources=("resources/lake/lake.py",), config=config or {}, inputs=[])
    if draft.finished is not None:
        return draft.finished
    (draft.directory / "large.bin").write_bytes(content)
    (draft.directory / "small.txt").write_text("small")
    return registry.finish(draft, {"rows": 1})
