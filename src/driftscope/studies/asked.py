"""The studies that come with driftscope, as functions: ``ds.studies.reduction`` and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.studies.reduction_study import FLOATS, FUNCTIONS, SIZES, STUDIED_LAWS, reduction_plan
from driftscope.studies.result import Study, perform
from driftscope.studies.running import running_of


def reduction(
    functions: Sequence[str] | str = FUNCTIONS,
    laws: Sequence[str] | str = STUDIED_LAWS,
    sizes: Sequence[int] | int = SIZES,
    dtypes: Sequence[str] | str = FLOATS,
    permutations: int = 128,
    seed: int = 0,
    *,
    threads: Sequence[int] | int = 1,
    batches: Sequence[int] | int = 1,
    **running: Any,
) -> Study:
    """Reorder the terms of a reduction many times and see how far its result moves.

    Parameters
    ----------
    functions : names
        ``"mean"``, ``"sum"``, ``"var"``, ``"norm"``, ``"layer_norm"``, ``"softmax"`` in numpy; the same with
        ``"torch."`` in front are torch's kernels.
    laws : names
        ``"normal"``, ``"fixed"`` (outliers), ``"pareto"``, ``"uniform"``, ``"lognormal"``, ``"cauchy"``,
        ``"cancelling"``, ``"wide"``, ``"shifted"``, or ``"module:function"`` for ``function(rng, size)``.
    sizes : whole numbers
        Terms of one reduction.
    dtypes : names
        ``"float64"``, ``"float32"``, ``"float16"``, ``"bfloat16"``.
    permutations : int
        Orders beside the one drawn; ascending and descending are the second and third of them.
    seed : int
    threads, batches : whole numbers
        Threads inside an operator, and rows of one call: further axes, for torch's kernels.
    running
        ``workers`` (None: one for each core; 0: this process), ``cluster``, ``store``, ``seconds`` and ``memory`` (for
        one cell), ``progress``: see :func:`driftscope.studies.running.running_of`.

    Returns
    -------
    Study
        ``.matrix()`` is the spread by size and dtype; ``.matrix(value="predicted_spread")`` what the error model
        predicts. A row's ``values`` hold the result of every order.

    Raises
    ------
    InputError
        For a name or number that is not known.
    """
    plan = reduction_plan(
        functions, laws, sizes, dtypes, permutations=permutations, seed=seed, threads=threads, batches=batches
    )
    return perform(plan, running_of(**running))
