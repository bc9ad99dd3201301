"""The label-free rules of `layerscope` on the published results.

`python -m layerscope_paper.rules` prints the comparison.
"""
