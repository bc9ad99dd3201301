"""Prompts made extreme, and their measures."""
