"""Answers to prompts: token ids in; sampled tokens, their log-probabilities and a grade out; kept across a kill.

Start with `rollout.py`: an `Engine` samples tokens, a `RolloutMaker` makes graded attempts of them. A killed run finds what was
paid for in an `AnswerLog`. Tokens are never decoded and encoded again."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.answers.answer_log import AnswerLog, Record, pack_array, unpack_array
    from model_ops.answers.answer_rows import RESCORED_ROWS, ROLLOUT_ROWS, SAMPLED_ANSWER_ROWS
    from model_ops.answers.engine_processes import EngineProcesses, EngineStart
    from model_ops.answers.in_process import InProcessEngine, MeshEngine, RolloutDrafting, copy_merged, decoding_twin
    from model_ops.answers.rollout import (
        NOT_SAMPLED,
        Engine,
        Rollout,
        RolloutMaker,
        Sampled,
        SampledPrompt,
        Tokens,
        last_of_attempts,
        read_sampled_prompts,
    )
    from model_ops.answers.rollout_log import (
        AnswerReader,
        GradedAnswers,
        RolloutChunk,
        RolloutLog,
        RolloutOutcome,
        sampled_text,
    )
    from model_ops.answers.vllm_engine import VllmEngine, VllmServer

__getattr__, __dir__, __all__ = door(__name__, __file__)
