"""Measures of one prompt's token states: entropy, curvature, the sink; and the kernels that a GPU
takes them with."""
