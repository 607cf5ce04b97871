"""When two tokens tie for a server."""

TIE_NATS = 0.25
"""Up to this distance, a server's greedy token ties with the likeliest one of own layers: the bfloat16 next to a logit between
16 and 32 is 0.125 away, and both logits may be rounded."""
