"""``ds.studies.comparisons``: a whole list of pairs, or a folder of models against their exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from driftscope.programs.state.process import state_kept
from driftscope.studies.comparison_study.cell import compare_pair
from driftscope.studies.comparison_study.pairs import listing_of
from driftscope.studies.engine.grid import Grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan, Reading
from driftscope.studies.engine.result import Study, perform

#: What every comparison imports: workers do so before their first one.
_MODULES = ("torch", "onnxruntime", "driftscope.inquiry")


@state_kept(exclusive=False)
def comparisons(source: str | Path, *, explain: bool = True, seed: int = 0, **running: Any) -> Study:
    """Compare many pairs of programs, each as ``ds.compare`` does, with every row kept.

    Parameters
    ----------
    source : str or path
        A .csv file with the columns ``a``, ``b`` and, where wanted, ``name`` and ``inputs``; or a folder in which
        ``NAME.onnx`` is compared with ``NAME.pt2``, and ``NAME.SOMETHING.onnx`` with the first of these.
    explain : bool
        Also say where programs that are not the same part.
    seed : int
    running
        ``workers``, ``cluster``, ``store``, ``seconds`` and ``memory`` (for one comparison), ``progress``: see
        :func:`driftscope.studies.engine.options.running_of`.

    Returns
    -------
    Study
        A row for each pair: ``verdict``, ``finding``, ``what``, ``node``, ``module``, ``floors``, ``lifted``,
        ``max_abs``. A pair that crashes, or runs past a limit, is a row that says so.

    Raises
    ------
    InputError
        If there is no pair in ``source``.
    """
    given = running_of(**running)
    return perform(comparison_plan(str(source), explain=explain, seed=seed), given)


def comparison_plan(source: str, *, explain: bool = True, seed: int = 0) -> Plan:
    """Return the study, ready to run."""
    listing = listing_of(source)
    return Plan(
        name="comparisons",
        function=compare_pair,
        grid=Grid({"pair": tuple(listing.pairs)}),
        fixed={"source": str(Path(source).resolve()), "digest": listing.digest, "explain": explain, "seed": seed},
        modules=_MODULES,
        views="driftscope.studies.comparison_study.views",
        reading=Reading(verdict="verdict", floors="floors"),
    )
