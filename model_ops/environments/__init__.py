"""What a policy acts in over several turns: environments of a user's file, or a user's own agent at a session's address.

Start with `agent_rollouts.py`, which plays attempts of both; `session_server.py` is the address, `policy_sessions.py` keeps a
conversation by its exact tokens, `environment_processes.py` holds each environment in a process that can be killed."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.environments.agent_rollouts import AgentRollouts, EnvironmentRollouts
    from model_ops.environments.environment_processes import EnvironmentProcesses
    from model_ops.environments.policy_sessions import PolicySessions
    from model_ops.environments.session_server import SessionServer
    from model_ops.environments.tasksets import TASKSET_CHILD, write_taskset

__getattr__, __dir__, __all__ = door(__name__, __file__)
