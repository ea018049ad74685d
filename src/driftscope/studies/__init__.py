"""Many questions at once: a grid, a pure cell function, rows that are kept.

``gemm``, ``layer_norm`` and ``reduction`` come with driftscope; :func:`study` makes a study of a function of your own,
:func:`load` of a YAML or TOML file. Names are opened when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftscope.studies.asked import gemm as gemm
    from driftscope.studies.asked import layer_norm as layer_norm
    from driftscope.studies.asked import reduction as reduction
    from driftscope.studies.own import load as load
    from driftscope.studies.own import study as study
    from driftscope.studies.plan import Plan as Plan
    from driftscope.studies.result import Study as Study
    from driftscope.studies.stored import open_study as open_study

_HOME = {
    "Plan": "driftscope.studies.plan",
    "Study": "driftscope.studies.result",
    "gemm": "driftscope.studies.asked",
    "layer_norm": "driftscope.studies.asked",
    "load": "driftscope.studies.own",
    "open_study": "driftscope.studies.stored",
    "reduction": "driftscope.studies.asked",
    "study": "driftscope.studies.own",
}

__all__ = ["Plan", "Study", "gemm", "layer_norm", "load", "open_study", "reduction", "study"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return __all__
