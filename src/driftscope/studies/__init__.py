"""Many questions at once: a grid, a pure cell function, rows that are kept.

``gemm``, ``layer_norm`` and ``reduction`` come with driftscope; :func:`comparisons` compares many pairs of programs;
:func:`study` makes a study of a function of your own,
:func:`load` of a YAML or TOML file. Names are opened when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftscope.studies.comparison_study.study import comparisons as comparisons
    from driftscope.studies.engine.plan import Plan as Plan
    from driftscope.studies.engine.result import Study as Study
    from driftscope.studies.engine.stored import open_study as open_study
    from driftscope.studies.gemm_study.study import gemm as gemm
    from driftscope.studies.layer_norm_study.study import layer_norm as layer_norm
    from driftscope.studies.reduction_study.study import reduction as reduction
    from driftscope.studies.user_studies import load as load
    from driftscope.studies.user_studies import study as study

_HOME = {
    "Plan": "driftscope.studies.engine.plan",
    "Study": "driftscope.studies.engine.result",
    "comparisons": "driftscope.studies.comparison_study.study",
    "gemm": "driftscope.studies.gemm_study.study",
    "layer_norm": "driftscope.studies.layer_norm_study.study",
    "load": "driftscope.studies.user_studies",
    "open_study": "driftscope.studies.engine.stored",
    "reduction": "driftscope.studies.reduction_study.study",
    "study": "driftscope.studies.user_studies",
}

__all__ = ["Plan", "Study", "comparisons", "gemm", "layer_norm", "load", "open_study", "reduction", "study"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return __all__
