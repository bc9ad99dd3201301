"""Eigenvalues of batches of matrices on a GPU: kernels of our own by size, and cuSOLVER.
`eigenvalues.py` chooses."""
