"""An agent that plays tasks of a taskset of prime-rl's `verifiers` 0.4, unmodified. For an interpreter that has it: beside the
standard library it imports nothing else.

    PYTHON -P taskset_child.py '{"taskset": {"id": "reverse-text"}}' 100         # its first 100 tasks, each a line of JSON

A line holds `messages`, `env` (the configuration of the environment: taskset, and what plays each role) and `task` (its data).
A role without a harness gets `null`, a chat with the taskset's tools; one without a runtime the subprocess runtime, on this
machine. The role without a `client` is the policy. verifiers relays its requests to the address of the session, which keeps
their tokens; tools, users and rewards are the taskset's own."""

import itertools
import json
import os
import sys
from pathlib import Path

import verifiers.v1 as vf

KEY = "MILLRACE_SESSION_API_KEY"
"""verifiers keeps variables of such names from the programs that it starts."""


async def play(row, base_url, api_key):
    """Plays the task of a row. Returns its reward as `score`, beside its weighted rewards and metrics by name."""
    given, data = row["record"]["env"], row["record"]["task"]
    env = vf.load_environment(vf.resolve_env_config(given))
    kind = type(env.taskset).task_type()
    task = kind(kind.data_type().model_validate(data), env.config.taskset.task)
    os.environ[KEY] = api_key
    beside = str(Path(sys.executable).parent)  # where `uv` is, which starts the programs of harnesses
    os.environ["PATH"] = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))
    client = vf.EvalClientConfig(base_url=base_url, api_key_var=KEY)
    async with env.serving():
        (slot,) = env.slots(task)
        episode = await env.run_slot(slot, vf.ModelContext(model="policy", client=client))
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        raise type(errors[-1].type if errors else "EpisodeError", (Exception,), {})  # its name is all that is told
    (trace,) = (trace for trace in episode.traces if trace.agent.name == policy_of(env.config))
    numbers = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    return {**trace.metrics, **numbers, "score": trace.reward}


def policy_of(config):
    """The role that the policy plays."""
    roles = [name for name, value in config if isinstance(value, vf.AgentConfig)]
    left = [name for name in roles if getattr(config, name).client is None]
    if len(left) != 1:
        raise SystemExit(f"the environment has the roles {', '.join(roles)}: give all but one of them a client")
    return left[0]


def settled(given):
    """The configuration with harness and runtime of each role."""
    for name, role in vf.resolve_env_config(given):
        if isinstance(role, vf.AgentConfig):
            said = given.setdefault(name, {})
            if role.harness is None and vf.default_harness_id(given["taskset"]["id"]) != given["taskset"]["id"]:
                said["harness"] = {"id": "null"}
            if "runtime" not in role.model_fields_set:
                said["runtime"] = {"type": "subprocess"}
    policy_of(vf.resolve_env_config(given))
    return given


def main(given, most):
    given = settled(json.loads(given))
    for task in itertools.islice(vf.load_taskset(vf.resolve_env_config(given).taskset), int(most)):
        data = task.data.model_dump(mode="json", exclude_none=True)
        said = data.get("prompt") or task.data.name or task.key  # where a user of the taskset begins
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        if "system_prompt" in data:
            messages = [{"role": "system", "content": data["system_prompt"]}, *messages]
        print(json.dumps({"messages": messages, "env": given, "task": data}))


if __name__ == "__main__":
    main(*sys.argv[1:])
