"""JAX's primitives as functions of torch tensors, by name; each result is held against JAX's own."""

from __future__ import annotations

from driftscope.lift.jax.rules.elementwise import ELEMENTWISE
from driftscope.lift.jax.rules.indexing import INDEXING
from driftscope.lift.jax.rules.products import PRODUCTS
from driftscope.lift.jax.rules.reductions import REDUCTIONS
from driftscope.lift.jax.rules.shapes import SHAPES

#: ``rule(*tensors, **parameters)``: the parameters are those of the primitive, as JAX names them.
RULES = {**ELEMENTWISE, **SHAPES, **PRODUCTS, **REDUCTIONS, **INDEXING}
