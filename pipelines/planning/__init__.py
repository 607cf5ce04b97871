"""Before a training: `millrace plan` (memory and speed) and `millrace sweep` (learning rates)."""
