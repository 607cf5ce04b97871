"""Agent trajectories with an outcome (tau-bench): {task_id, trial, reward, info, traj: [messages]}.

One interaction per assistant turn, with the history before it as the request. Task and trial are the session; the reward is
feedback on the session.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    return isinstance(record.get("traj"), list)


FORMAT = Format("trajectories", recognises, fills=("interactions", "feedback"), turns=True)
