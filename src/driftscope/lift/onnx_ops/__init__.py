"""ONNX operators by family; importing this package fills the table in :mod:`.registry`."""

from __future__ import annotations

from driftscope.lift.onnx_ops import (
    activations as activations,
)
from driftscope.lift.onnx_ops import (
    casting as casting,
)
from driftscope.lift.onnx_ops import (
    contraction as contraction,
)
from driftscope.lift.onnx_ops import (
    convolution as convolution,
)
from driftscope.lift.onnx_ops import (
    elementwise as elementwise,
)
from driftscope.lift.onnx_ops import (
    indexing as indexing,
)
from driftscope.lift.onnx_ops import (
    normalisation as normalisation,
)
from driftscope.lift.onnx_ops import (
    pooling as pooling,
)
from driftscope.lift.onnx_ops import (
    quantise as quantise,
)
from driftscope.lift.onnx_ops import (
    reductions as reductions,
)
from driftscope.lift.onnx_ops import (
    shaping as shaping,
)
