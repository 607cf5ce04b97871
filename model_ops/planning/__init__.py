"""What training will need, before it is tried: memory and operations, predicted from a model's shape."""
