"""The label-free rules of `layerscope`, judged on the published results: `python -m layerscope_paper.rules`."""
