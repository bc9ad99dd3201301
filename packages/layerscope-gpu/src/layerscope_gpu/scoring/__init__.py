"""MTEB's scores of many layers and readouts at once, batched in torch, on a CPU or a GPU.

These functions compute scores from vectors and a problem, without mteb, datasets or scikit-learn.
Where mteb draws samples or stops a fit early, they draw the same samples and take the same steps,
so that the scores can be compared with mteb's.
"""
