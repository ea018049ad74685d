"""ONNX operators by family; importing this package fills the table in :mod:`driftscope.lift.onnx.registry`."""

from __future__ import annotations

import importlib
import pkgutil

# A family is a file in this folder: adding one here is adding it to the table.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
