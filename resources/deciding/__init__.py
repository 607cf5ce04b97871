"""Decides whether anything of a workload is worth retraining, does the least that helps, and records what came of it. gather.py
collects the evidence (rows, drift, serving metrics, past costs), causes.py says which causes hold, options.py weighs cost
against the last measured gain, policy.py takes the first cause within the budget and the quiet hours, gather.py fills in the
real cost and gain afterwards. Requests of people are causes too (requests.py). It starts no run: the sensor `decide` of
pipelines/graph does. Start with policy.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.deciding.causes import quiet_hold
    from resources.deciding.costs import ACTIONS, AROUND_S, SPELLED, WORKERS, Work
    from resources.deciding.decisions import Decision, Decisions, Option
    from resources.deciding.evidence import DecideSettings, RecipeFacts
    from resources.deciding.gather import DecisionRun, settle_decision
    from resources.deciding.policy import NEVER_ENOUGH, UNKNOWN_COST, decide, preview, pulse
    from resources.deciding.requests import DESPITE, RequestError, Requests, RetrainingRequest

__getattr__, __dir__, __all__ = door(__name__, __file__)
