"""The training loss of drafters: training_loss.py calls chain_loss.py; formulas are in speculator_losses.py."""
