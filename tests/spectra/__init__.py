"""Tests of layerscope.spectra."""
