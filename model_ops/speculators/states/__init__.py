"""What drafters are trained on: the target's hidden states (hidden_states.py), batches of them, and the draft vocabulary."""
