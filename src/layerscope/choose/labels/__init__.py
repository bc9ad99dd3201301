"""Choosing a layer and readout with a few labeled examples."""
