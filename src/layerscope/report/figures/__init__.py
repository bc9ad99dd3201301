"""Figures for people and papers, and the colours of all of them."""
