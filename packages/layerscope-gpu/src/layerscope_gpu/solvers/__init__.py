"""Solvers for eigenvalues of batches of matrices on a GPU: kernels for small and middle sizes, and
cuSOLVER. `layerscope_gpu.eigenvalues` chooses among them."""
