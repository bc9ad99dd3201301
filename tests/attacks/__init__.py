"""Attacks that must not work, and wrong numbers that must not be made without a word, each tried
from the command line."""
