"""Runs our CUDA kernels on the CPU, slowly and strictly, so that they can be tested where there is
no GPU."""

from layerscope_gpu.emulator.emulator import KernelError, launch, missing

__all__ = ["KernelError", "launch", "missing"]
