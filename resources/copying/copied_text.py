"""Prints what a copy of an artefact did."""

from __future__ import annotations

from model_ops.wording import counted, size
from resources.copying.copy_artefact import Copied
from resources.lake import Lake


def sentences(copied: Copied, to: Lake) -> list[str]:
    """One sentence for each thing that a person may want to know."""
    said = [f"copied {name} to {to.place}" for name in copied.whole]
    said += [f"{name} is in {to.place} already" for name in copied.there]
    if copied.files:
        said.append(f"{counted(copied.files, 'file')}, {size(copied.bytes)}")
    if copied.manifests:
        said.append(f"{counted(copied.manifests, 'manifest')} of what it was made from, without files")
    said += [f"{name}, behind it, is gone from the first lake: its lineage ends there" for name in copied.gone]
    said += [f"{name} is the current version there" for name in copied.current]
    return said
