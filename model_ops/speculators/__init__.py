"""Trained drafters: one folder for each architecture (EAGLE-3, DFlash, MTP, a standalone model). `architecture.py` describes
one kind, `architectures/__init__.py` lists them. Start with `operation.py`, which trains one, then `eagle3/network.py`. How a
draft is verified is in `decoding`."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.speculators.eagle3.architecture import Eagle3Settings
    from model_ops.speculators.factory import load_draft_model
    from model_ops.speculators.operation import run
    from model_ops.speculators.registry import ARCHITECTURES, AnySpeculatorSettings, architecture_of
    from model_ops.speculators.serving import DrafterServing, SglangOptions, VllmOptions
    from model_ops.speculators.settings import SpeculatorSettings
    from model_ops.speculators.standalone.architecture import DRAFT_MODEL
    from model_ops.speculators.standalone.network import check_shared_vocabulary
    from model_ops.speculators.verify_layers import (
        SPECULATORS_LAYOUT,
        is_in_speculators_layout,
        mismatches,
        verify_same_vocabulary,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
