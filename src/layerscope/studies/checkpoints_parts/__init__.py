"""Checkpoints of a training run: where they are, and what moves between them."""
