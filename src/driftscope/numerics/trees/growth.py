"""What a tree of additions does to rounding errors."""

from __future__ import annotations

import numpy as np

from driftscope.numerics.groupings import Growth
from driftscope.numerics.trees.tree import SumTree


def growth_of(tree: SumTree, *, products: str = "none") -> Growth:
    """Grow the rounding error of a sum over its tree, addition by addition.

    Every addition rounds its partial sum. With ``p`` of ``n`` terms, taken as independent draws given their total ``S``
    and ``V = sum t^2 - S^2 / n``, its mean square is ``p/n (1 - p/n) V + (p/n)^2 S^2``
    (:func:`driftscope.numerics.groupings.growth` has the same sum in closed form for nested folds).

    Parameters
    ----------
    tree : SumTree
    products : str
        ``"none"`` where terms are added as they are, or are products that the accumulator holds; ``"fma"`` where the
        first product of a chain is rounded, ``"rounded"`` where every one is.
    """
    n = tree.n
    # A step of several additions rounds once, at its end.
    ends = np.ones(n - 1, np.bool_)
    ends[tree.left[tree.joined] - n] = False
    share = tree.sizes[n:][ends] / n
    terms, total = float((share * (1 - share)).sum()), float((share**2).sum())
    rounded = {"rounded": n, "fma": int(((tree.left < n) & (tree.right < n)).sum()), "mixed": n // 2}.get(products, 0)
    terms += rounded / n * (1 - 1 / n)
    total += rounded / n**2
    return Growth(terms, max(total - terms / n, 0.0))
