"""What a target is asked and how: turns of logged conversations, the parameters they were sampled with, who answers."""
