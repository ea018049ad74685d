"""The worker's side of :mod:`driftscope.shapes.probe.aoti_target`."""

from __future__ import annotations

from typing import Any

import numpy as np

_packages: dict[str, Any] = {}


def serve(path: str, leaves: list[Any]) -> tuple[Any, ...]:
    """Run a compiled package once.

    Parameters
    ----------
    path : str
    leaves : list of ndarray and Python numbers
        In the order of the exported program's inputs.

    Returns
    -------
    tuple
        ``("ran", [ndarray, ...])`` or ``("refused", words, kind)``.
    """
    import torch

    if path not in _packages:
        _packages[path] = torch._inductor.aoti_load_package(path)
    package = _packages[path]
    given = [torch.from_numpy(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    try:
        # Leaves in, leaves out: the containers' classes may not be known to this process.
        result = package.loader.run([leaf for leaf in given if isinstance(leaf, torch.Tensor)])
        return ("ran", [v.detach().numpy() if isinstance(v, torch.Tensor) else np.asarray(v) for v in result])
    except Exception as error:  # whatever it raises is its answer at this shape
        lines = str(error).strip().splitlines()
        return ("refused", lines[0][:300] if lines else type(error).__name__, type(error).__name__)
