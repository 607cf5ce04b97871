"""The numbers that inference servers report at /metrics, by window and release, in the table serving_metrics."""
