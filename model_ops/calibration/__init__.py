"""Quantization that looks at what layers read: calibration rows, and a walk over a model's blocks."""
