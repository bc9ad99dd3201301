"""Scoring every layer of a model on labelled tasks."""
