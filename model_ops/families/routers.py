"""Names of routers."""

ROUTERS = ("gate", "router", "shared_expert_gate")
"""Last parts of the names of linear layers that route tokens to experts."""
