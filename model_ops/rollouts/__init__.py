"""What a policy samples while it learns: prompts, engines that answer them, and rollouts, which have a grade and the
log-probability of every sampled token.

Start with `rollout.py`: `Engine` answers tokens with tokens, `RolloutMaker` makes the graded attempts at a prompt of its
answers. `in_process.py` is the engine that decodes with the weights in training, `mesh_engine.py` has one in each process of a
mesh, `vllm_engine.py` is the one that asks servers. `prompts.py` reads the rows that are answered, `rollout_log.py` keeps what
was sampled and graded. `engine_processes.py` has engines that sample while the model is in training, with weights that
`in_flight.py` exchanges between two tokens. Tokens are never decoded and encoded again: what was sampled is what is learnt.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.rollouts.engine_child import EngineStart
    from model_ops.rollouts.engine_processes import EngineProcesses
    from model_ops.rollouts.graded_answers import AnswerReader, GradedAnswers, sampled_text
    from model_ops.rollouts.in_process import InProcessEngine, RolloutDrafting, Sampler, copy_merged, decoding_twin
    from model_ops.rollouts.mesh_engine import MeshEngine
    from model_ops.rollouts.prompts import SampledPrompt, read_sampled_prompts
    from model_ops.rollouts.rollout import NOT_SAMPLED, Engine, Rollout, RolloutMaker, Sampled, Tokens, last_of_attempts
    from model_ops.rollouts.rollout_log import RolloutChunk, RolloutLog, RolloutOutcome, read_rollout, written_rollout
    from model_ops.rollouts.rollout_rows import RESCORED_ROWS, ROLLOUT_ROWS
    from model_ops.rollouts.vllm_engine import VllmEngine, VllmServer

__getattr__, __dir__, __all__ = door(__name__, __file__)
