"""Entropies of every prefix of a prompt, and what the study of reasoning makes of them."""
