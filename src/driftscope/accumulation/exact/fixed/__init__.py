"""Layers in a fixed order, for speed: compiled where there is a library, and the same list of operations in torch.

Correctly rounded sums (the rest of this folder) need no order; these have one, cost about what torch's kernels cost,
and are what ``ds.reproducible()`` runs.
"""
