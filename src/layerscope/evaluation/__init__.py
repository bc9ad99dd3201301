"""Every layer and every readout of a model on labelled tasks, each distinct text encoded once.

The mteb library does the scoring, so that the numbers are MTEB's numbers (extra `mteb`).
"""
