"""Tests of layerscope.metrics."""
