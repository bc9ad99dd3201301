"""Every layer and every readout of a model on labeled tasks, each distinct text encoded once.

The mteb library does the scoring, so that the numbers are MTEB's numbers (extra `mteb`).
"""
