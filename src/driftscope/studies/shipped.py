"""The studies that come with driftscope, as functions: ``ds.studies.reduction`` and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.programs.state.process import state_kept
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.result import Study, perform
from driftscope.studies.gemm_study.study import DATA, gemm_plan
from driftscope.studies.gemm_study.study import FLOATS as GEMM_FLOATS
from driftscope.studies.gemm_study.variants import VARIANTS
from driftscope.studies.layer_norm_study.implementations import DATA as NORM_DATA
from driftscope.studies.layer_norm_study.study import FLOATS as NORM_FLOATS
from driftscope.studies.layer_norm_study.study import layer_norm_plan
from driftscope.studies.reduction_study.study import FLOATS, FUNCTIONS, SIZES, STUDIED_LAWS, reduction_plan


@state_kept(exclusive=False)
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
        one cell), ``progress``: see :func:`driftscope.studies.engine.options.running_of`.

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


@state_kept(exclusive=False)
def gemm(
    size: int | str = 1280,
    dtypes: Sequence[str] | str = GEMM_FLOATS,
    devices: Sequence[str] | str | None = None,
    data: Sequence[str] | str = DATA,
    *,
    variants: Sequence[str] | str = VARIANTS,
    levels: Sequence[str] | str = ("disable", "all"),
    threads: int = 1,
    reveal: bool = True,
    seed: int = 0,
    **running: Any,
) -> Study:
    """Compute ``A @ X + B`` in every way and set the results side by side.

    Parameters
    ----------
    size : int or str
        Of all three dimensions, or ``"MxKxN"`` as ``"1280x256x256"``.
    dtypes : names
        ``"float32"``, ``"float16"``, ``"bfloat16"``, ``"float64"``. The reference is always the product in float64.
    devices : names or None
        ``"cpu"``, ``"cuda"``, ``"xpu"``, ``"mps"``; by default those there are. One that is not gives rows that say so.
    data : names
        ``"normal"``: unit normal. ``"bias"``: A and X at most 1 and a bias that climbs to 16 from column to column.
    variants : names
        ``"F.linear"``, ``"Gemm"``, ``"Gemm + Add"``, ``"MatMul + Add"``, ``"FusedMatMul + Add"``,
        ``"Cast(Gemm) + Add"``, ``"Cast(Gemm)"``, ``"a @ x + b"``, ``"torch.compile"``, ``"numpy"``, ``"exact"``
        (float64, rounded once).
    levels : names
        Optimisation levels of onnxruntime: ``"disable"``, ``"basic"``, ``"extended"``, ``"layout"``, ``"all"``. A
        level at which it runs the same graph as at an earlier one is left out.
    threads : int
        Threads inside an operator.
    reveal : bool
        Also reveal the order in which each kernel adds, with the first data set.
    seed : int
    running
        As for :func:`reduction`.

    Returns
    -------
    Study
        ``.matrix()`` is the largest absolute difference of every pair; ``.matrix("floors")`` the same in floors,
        ``.matrix("verdict")`` in words.

    Raises
    ------
    InputError
        For a name or number that is not known.
    """
    plan = gemm_plan(
        size, dtypes, devices, data, variants=variants, levels=levels, threads=threads, reveal=reveal, seed=seed
    )
    given = running_of(**{"operator_threads": threads, **running})
    return perform(plan, given)


@state_kept(exclusive=False)
def layer_norm(
    rows: int = 1024,
    last_dim: int = 1152,
    dtypes: Sequence[str] | str = NORM_FLOATS,
    devices: Sequence[str] | str | None = None,
    data: Sequence[str] | str = NORM_DATA,
    *,
    threads: int = 1,
    seed: int = 0,
    **running: Any,
) -> Study:
    """Run LayerNormalization, MatMul and Add in every mixture of torch and onnxruntime.

    Parameters
    ----------
    rows, last_dim : int
        Shape of the input; the matrix is square.
    dtypes : names
        ``"float32"``, ``"float16"``, ``"bfloat16"``.
    devices : names or None
        ``"cpu"``, ``"cuda"``, ``"xpu"``, ``"mps"``; by default those this machine has.
    data : names
        ``"normal"``, ``"large mean"``, ``"tiny variance"``, ``"outliers"``.
    threads : int
        Threads inside an operator.
    seed : int
    running
        As for :func:`reduction`.

    Returns
    -------
    Study
        Mixtures are three letters, one for each operator: ``t`` torch, ``o`` onnxruntime. ``.matrix()`` is the error
        of every way to run the chain by dtype; ``.matrix("floors")`` in floors. Rows of kind ``operator`` say what
        exchanging one operator does, rows of kind ``implementation`` how good a normalisation is by itself.

    Raises
    ------
    InputError
        For a name or number that is not known.
    """
    plan = layer_norm_plan(rows, last_dim, dtypes, devices, data, threads=threads, seed=seed)
    return perform(plan, running_of(**{"operator_threads": threads, **running}))
