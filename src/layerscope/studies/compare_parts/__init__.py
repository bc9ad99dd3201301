"""Differences between models, prompt by prompt."""
