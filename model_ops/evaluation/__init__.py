"""Confidence intervals and plots of the evaluation report."""
