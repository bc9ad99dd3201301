"""Metrics of pooled vectors at many sites together."""
