"""Its place lets the rooms' tests import `interaction_rows` from this folder."""
