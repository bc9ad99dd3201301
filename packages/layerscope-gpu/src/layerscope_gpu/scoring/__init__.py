"""MTEB's scores of many layers and readouts at once, batched in torch, on a CPU or a GPU.

Pure arithmetic: vectors and a problem in, scores out, without mteb, datasets or scikit-learn. Where
mteb draws samples or stops a fit early, the same samples are drawn and the same steps are taken, so
that numbers can be compared with its own.
"""
