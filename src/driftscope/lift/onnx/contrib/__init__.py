"""onnxruntime's own operators by family; importing this package adds them to :mod:`driftscope.lift.onnx.registry`."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
