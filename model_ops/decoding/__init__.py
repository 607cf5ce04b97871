"""Generates tokens with a cache: greedy or sampled, for many rows at once, alone or with a drafter whose tokens the target
verifies exactly, so that output has the target's own distribution. Start with `decode_loop.py`; `drafters.py` is the interface
of a drafter."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.decoding.decode_loop import Completion, decode
    from model_ops.decoding.drafters import DraftChain, Drafter, ModelDrafter, Proposal, independent_drafts
    from model_ops.decoding.incremental import FINAL, RotaryTable, rotate, runs_fast
    from model_ops.decoding.penalties import NO_PENALTIES, Penalties
    from model_ops.decoding.prompts import Prompt, choose_prompts, read_prompts, render_prompt
    from model_ops.decoding.ragged_cache import RaggedCache
    from model_ops.decoding.runner import Runner, decoding_dtype, new_runner
    from model_ops.decoding.sampling import NONE, Truncation, sample
    from model_ops.decoding.target import load_runner

__getattr__, __dir__, __all__ = door(__name__, __file__)
