"""Kernels of our own and CUDA libraries, reached without a compiler: compiled by NVRTC, called through ctypes."""
