"""MEDUSA: several heads on the target's last hidden state."""
