"""EAGLE-3 and EAGLE-3.1: a chain of drafts from three of the target's hidden states; network.py also decodes with MTP."""
