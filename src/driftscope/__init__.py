"""driftscope: I changed how my tensor program runs. Is it still the same program?

Names are opened when they are first used: importing driftscope imports neither torch nor numpy nor onnx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from driftscope import studies as studies
    from driftscope import testing as testing
    from driftscope.accumulation import exactly as exact
    from driftscope.accumulation.exact_mode import reproducible as reproducible
    from driftscope.accumulation.revealing import reveal_sum as reveal
    from driftscope.errors import DependencyMissing as DependencyMissing
    from driftscope.errors import DriftscopeError as DriftscopeError
    from driftscope.errors import InputError as InputError
    from driftscope.errors import ProgramError as ProgramError
    from driftscope.errors import RecordError as RecordError
    from driftscope.errors import RuntimeRefused as RuntimeRefused
    from driftscope.explain.blaming import blame as blame
    from driftscope.explain.half_range import check_half as check_half
    from driftscope.inquiry import compare as compare
    from driftscope.inquiry import compare_all as compare_all
    from driftscope.inquiry import compare_values as compare_values
    from driftscope.programs.feeds import Inputs as Inputs
    from driftscope.programs.feeds import make_inputs as inputs
    from driftscope.programs.listing import listing_of as pretty
    from driftscope.programs.loading import load_program as program
    from driftscope.programs.loading import onnx_program as onnx
    from driftscope.programs.loading import recorded as recorded
    from driftscope.programs.loading import torch_program as torch
    from driftscope.programs.protocol import Program as Program
    from driftscope.records.comparison import Comparison as Comparison
    from driftscope.records.comparison import OutputRecord as OutputRecord
    from driftscope.records.comparison import Side as Side
    from driftscope.records.comparison import Tolerance as Tolerance
    from driftscope.records.finding import Finding as Finding
    from driftscope.records.finding import Where as Where
    from driftscope.records.transform_report import TransformReport as TransformReport
    from driftscope.records.verdict import FailOn as FailOn
    from driftscope.records.verdict import Verdict as Verdict
    from driftscope.records.verification import Verification as Verification
    from driftscope.shapes.checking import ShapeReport as ShapeReport
    from driftscope.shapes.checking import check_shapes as check_shapes
    from driftscope.shapes.covered_program import CoveredProgram as CoveredProgram
    from driftscope.shapes.covered_program import cover_shapes as cover
    from driftscope.testing import max_diff as max_diff
    from driftscope.transforms.batching import vmap as vmap
    from driftscope.transforms.checking import check_transforms as check_transforms

# public name -> (module, name there); an empty name is the module itself
_HOME = {
    "Comparison": ("driftscope.records.comparison", "Comparison"),
    "CoveredProgram": ("driftscope.shapes.covered_program", "CoveredProgram"),
    "DependencyMissing": ("driftscope.errors", "DependencyMissing"),
    "DriftscopeError": ("driftscope.errors", "DriftscopeError"),
    "FailOn": ("driftscope.records.verdict", "FailOn"),
    "Finding": ("driftscope.records.finding", "Finding"),
    "InputError": ("driftscope.errors", "InputError"),
    "Inputs": ("driftscope.programs.feeds", "Inputs"),
    "OutputRecord": ("driftscope.records.comparison", "OutputRecord"),
    "Program": ("driftscope.programs.protocol", "Program"),
    "ProgramError": ("driftscope.errors", "ProgramError"),
    "RecordError": ("driftscope.errors", "RecordError"),
    "RuntimeRefused": ("driftscope.errors", "RuntimeRefused"),
    "ShapeReport": ("driftscope.shapes.checking", "ShapeReport"),
    "Side": ("driftscope.records.comparison", "Side"),
    "Tolerance": ("driftscope.records.comparison", "Tolerance"),
    "TransformReport": ("driftscope.records.transform_report", "TransformReport"),
    "Verdict": ("driftscope.records.verdict", "Verdict"),
    "Verification": ("driftscope.records.verification", "Verification"),
    "Where": ("driftscope.records.finding", "Where"),
    "blame": ("driftscope.explain.blaming", "blame"),
    "check_half": ("driftscope.explain.half_range", "check_half"),
    "check_shapes": ("driftscope.shapes.checking", "check_shapes"),
    "check_transforms": ("driftscope.transforms.checking", "check_transforms"),
    "compare": ("driftscope.inquiry", "compare"),
    "compare_all": ("driftscope.inquiry", "compare_all"),
    "compare_values": ("driftscope.inquiry", "compare_values"),
    "cover": ("driftscope.shapes.covered_program", "cover_shapes"),
    "exact": ("driftscope.accumulation.exactly", ""),
    "inputs": ("driftscope.programs.feeds", "make_inputs"),
    "max_diff": ("driftscope.testing", "max_diff"),
    "onnx": ("driftscope.programs.loading", "onnx_program"),
    "pretty": ("driftscope.programs.listing", "listing_of"),
    "program": ("driftscope.programs.loading", "load_program"),
    "recorded": ("driftscope.programs.loading", "recorded"),
    "reveal": ("driftscope.accumulation.revealing", "reveal_sum"),
    "reproducible": ("driftscope.accumulation.exact_mode", "reproducible"),
    "studies": ("driftscope.studies", ""),
    "testing": ("driftscope.testing", ""),
    "torch": ("driftscope.programs.loading", "torch_program"),
    "vmap": ("driftscope.transforms.batching", "vmap"),
}

__all__ = [
    "Comparison",
    "CoveredProgram",
    "DependencyMissing",
    "DriftscopeError",
    "FailOn",
    "Finding",
    "InputError",
    "Inputs",
    "OutputRecord",
    "Program",
    "ProgramError",
    "RecordError",
    "RuntimeRefused",
    "ShapeReport",
    "Side",
    "Tolerance",
    "TransformReport",
    "Verdict",
    "Verification",
    "Where",
    "__version__",
    "blame",
    "check_half",
    "check_shapes",
    "check_transforms",
    "compare",
    "compare_all",
    "compare_values",
    "cover",
    "exact",
    "inputs",
    "max_diff",
    "onnx",
    "pretty",
    "program",
    "recorded",
    "reproducible",
    "reveal",
    "studies",
    "testing",
    "torch",
    "vmap",
]


# A type checker reads the block at the top instead, and so reports names that do not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("driftscope")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, inner = _HOME[name]
        value = importlib.import_module(module)
        found: Any = getattr(value, inner) if inner else value
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return __all__
