"""An artefact outside of its graph: `millrace rebuild` makes it again from its manifest in a side lake and compares the bytes;
`millrace copy` copies it into another lake, with the manifests of everything behind it."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.rebuilding.copies import copy_artefact, sentences
    from pipelines.rebuilding.side_build import print_rebuilt, rebuild

__getattr__, __dir__, __all__ = door(__name__, __file__)
