"""P-EAGLE: EAGLE-3's body with all drafts in one pass."""
