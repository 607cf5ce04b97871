"""What a policy acts in over several turns: environments of a user's file, or a user's own agent at a session's address.

`environment_rollouts.py` plays attempts: the policy's turns are sampled together, tools answer them, and the environment grades
the end. `agent_rollouts.py` runs agents, which ask at `session_server.py` in the forms of `session_apis.py`;
`session_fields.py` refuses what nobody here does; `policy_sessions.py` tells which request goes on from which turn.
`conversation.py` keeps a conversation by its exact tokens, of which only the sampled ones are learnt.
`environment_processes.py` holds every environment or agent in a process that can be killed. The tasks of a taskset of
`verifiers` are rows by `tasksets.py`, and `taskset_child.py` is the agent that plays them.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.environments.agent_rollouts import AgentRollouts, EnvironmentRollouts
    from model_ops.environments.environment_processes import EnvironmentProcesses
    from model_ops.environments.policy_sessions import PolicySessions
    from model_ops.environments.session_server import SessionServer
    from model_ops.environments.tasksets import TASKSET_CHILD, write_taskset

__getattr__, __dir__, __all__ = door(__name__, __file__)
