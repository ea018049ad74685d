"""The worker's side of :mod:`driftscope.shapes.aoti_target`."""

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
    from torch.utils import _pytree as pytree

    if path not in _packages:
        _packages[path] = torch._inductor.aoti_load_package(path)
    package = _packages[path]
    given = [torch.from_numpy(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    try:
        spec = pytree.treespec_loads(package.get_call_spec()[0])
        args, kwargs = pytree.tree_unflatten(given, spec)
        result = pytree.tree_leaves(package(*args, **kwargs))
        return ("ran", [v.detach().numpy() if isinstance(v, torch.Tensor) else np.asarray(v) for v in result])
    except Exception as error:  # whatever it raises is its answer at this shape
        lines = str(error).strip().splitlines()
        return ("refused", lines[0][:300] if lines else type(error).__name__, type(error).__name__)
