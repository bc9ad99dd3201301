"""Run CUDA kernels on the CPU, slowly and with strict checks, to test them without a GPU."""

from layerscope_gpu.emulator.emulator import KernelError, launch, missing

__all__ = ["KernelError", "launch", "missing"]
