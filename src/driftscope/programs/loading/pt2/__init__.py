"""``.pt2`` files, taken apart, checked piece by piece, and packed again before torch reads them.

``torch.export.load`` trusts its file: it falls back to full unpickling, evaluates shape expressions as Python, imports
modules that a container names, compiles names and guards into functions, and calls any operator. So nothing of a
stranger's archive reaches it: members, JSON fields, symbols, operators and containers come from allowlists, tensors are
raw bytes, and what was understood is written anew.
"""

from __future__ import annotations

from driftscope.programs.loading.pt2.reading import read_exported, read_exported_bytes

__all__ = ["read_exported", "read_exported_bytes"]
