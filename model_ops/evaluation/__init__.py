"""What an evaluation adds to its measurements: intervals and plots."""
