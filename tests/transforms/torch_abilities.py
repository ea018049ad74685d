"""What newer versions of torch do right: asked of the one that is there."""

from __future__ import annotations

import torch
from torch.torch_version import TorchVersion

#: Whether ``torch.compile`` keeps what a function writes into a captured tensor, and the gradient it writes itself.
COMPILES_WRITES = TorchVersion(torch.__version__) >= (2, 15)


def _writes_through_a_mask() -> bool:
    def zeroed(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[x > 0] = 0.0
        return y

    try:
        return torch.equal(torch.vmap(zeroed)(torch.eye(2)), torch.zeros(2, 2))
    except RuntimeError:
        return False


WRITES_THROUGH_A_MASK = _writes_through_a_mask()
