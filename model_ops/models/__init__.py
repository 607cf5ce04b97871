"""Models as directories: loading, saving, checking; attention for packed rows; quantized layers."""
