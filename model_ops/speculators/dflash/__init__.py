"""DFlash: a block of drafts in one pass, with the target's own embedding and head."""
