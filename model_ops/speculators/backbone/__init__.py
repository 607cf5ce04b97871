"""What EAGLE-3 and MTP share: decoder layers (draft_layers.py) and the attention of their training."""
