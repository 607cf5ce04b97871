"""Environments that a policy acts in: objects of a user's file with `reset`, tools, and a reward, over several turns.

`environment_rollouts.py` plays attempts: the policy's turns are sampled together, tools answer them, and the environment grades
the end. `conversation.py` keeps a conversation by its exact tokens, of which only the sampled ones are learnt.
`environment_processes.py` holds every environment in a process that can be killed. What is learnt is decided in objectives.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.environments.environment_processes import EnvironmentProcesses
    from model_ops.environments.environment_rollouts import EnvironmentRollouts
    from model_ops.environments.finished_attempts import FinishedAttempts

__getattr__, __dir__, __all__ = door(__name__, __file__)
