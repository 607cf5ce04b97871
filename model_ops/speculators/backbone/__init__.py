"""What EAGLE-3, P-EAGLE and MTP share: decoder layers (draft_layers.py) and the attention of their training."""
