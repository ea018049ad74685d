"""The native part of the build; everything else is in pyproject.toml.

Numerics is also a compiler flag: at -O2 a compiler that may contract turns a product and a sum into one fused
operation with other bits, and -ffast-math reorders sums. Both are forbidden here, in the one place where native code
is compiled, and a test disassembles the result.
"""

from __future__ import annotations

from setuptools import Extension, setup

NATIVE = "src/driftscope/accumulation/native"

setup(
    ext_modules=[
        Extension(
            "driftscope.accumulation._exact",
            sources=[f"{NATIVE}/{name}.c" for name in ("exact", "fixed_order", "layers", "replay")],
            depends=[
                f"{NATIVE}/{name}.h"
                for name in (
                    "adds",
                    "arithmetic",
                    "blocks",
                    "elementary",
                    "products",
                    "rounding",
                    "superaccumulator",
                    "tile",
                    "unrounded",
                    "windows",
                )
            ],
            extra_compile_args=["-O2", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden"],
            libraries=["m"],
            # Without a compiler the same bits are computed in integers, slower; an installation never fails for it.
            optional=True,
        ),
        Extension(
            "driftscope.lift.noise._noise",
            sources=["src/driftscope/lift/noise/native/noise.c"],
            # Its loops are plain, and left to the compiler to make vectors of.
            extra_compile_args=["-O3", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden"],
            libraries=["m"],
            optional=True,
        ),
    ]
)
