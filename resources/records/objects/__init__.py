"""Splits the bytes of a log object (JSON, Parquet, CSV, text; compressed or not) into records."""
