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
    from driftscope.accumulation.exact import reductions as exact
    from driftscope.accumulation.exact.mode import reproducible as reproducible
    from driftscope.accumulation.revealing.reveal_kernel import reveal_sum as reveal
    from driftscope.errors import DependencyMissing as DependencyMissing
    from driftscope.errors import DriftscopeError as DriftscopeError
    from driftscope.errors import InputError as InputError
    from driftscope.errors import ProgramError as ProgramError
    from driftscope.errors import RecordError as RecordError
    from driftscope.errors import RuntimeRefused as RuntimeRefused
    from driftscope.explain.blame.blaming import blame as blame
    from driftscope.explain.half.range import check_half as check_half
    from driftscope.inquiry import compare as compare
    from driftscope.inquiry import compare_all as compare_all
    from driftscope.inquiry import compare_values as compare_values
    from driftscope.invariance.checking import check_invariance as check_invariance
    from driftscope.programs.feeding.feeds import Inputs as Inputs
    from driftscope.programs.feeding.feeds import make_inputs as inputs
    from driftscope.programs.inspection.listing import listing_of as pretty
    from driftscope.programs.loading.load import load_program as program
    from driftscope.programs.loading.load import onnx_program, torch_program
    from driftscope.programs.loading.load import recorded as recorded
    from driftscope.programs.protocol import Program as Program
    from driftscope.records.finding import Finding as Finding
    from driftscope.records.finding import Where as Where
    from driftscope.records.kinds.comparison import Comparison as Comparison
    from driftscope.records.kinds.invariance_report import InvarianceReport as InvarianceReport
    from driftscope.records.kinds.output import OutputRecord as OutputRecord
    from driftscope.records.kinds.output import Side as Side
    from driftscope.records.kinds.output import Tolerance as Tolerance
    from driftscope.records.kinds.transform_report import TransformReport as TransformReport
    from driftscope.records.kinds.verification import Verification as Verification
    from driftscope.records.verdict import FailOn as FailOn
    from driftscope.records.verdict import Verdict as Verdict
    from driftscope.shapes.answer import ShapeReport as ShapeReport
    from driftscope.shapes.checking import check_shapes as check_shapes
    from driftscope.shapes.covering.covered_program import CoveredProgram as CoveredProgram
    from driftscope.shapes.covering.covered_program import cover_shapes as cover
    from driftscope.testing import max_diff as max_diff
    from driftscope.transforms.batching.batched import vmap as vmap
    from driftscope.transforms.checking import check_transforms as check_transforms

    # Not in __all__, and so no export to a type checker unless they are defined here.
    onnx = onnx_program
    torch = torch_program

# public name -> (module, name there); an empty name is the module itself
_HOME = {
    "Comparison": ("driftscope.records.kinds.comparison", "Comparison"),
    "CoveredProgram": ("driftscope.shapes.covering.covered_program", "CoveredProgram"),
    "DependencyMissing": ("driftscope.errors", "DependencyMissing"),
    "DriftscopeError": ("driftscope.errors", "DriftscopeError"),
    "FailOn": ("driftscope.records.verdict", "FailOn"),
    "Finding": ("driftscope.records.finding", "Finding"),
    "InputError": ("driftscope.errors", "InputError"),
    "Inputs": ("driftscope.programs.feeding.feeds", "Inputs"),
    "InvarianceReport": ("driftscope.records.kinds.invariance_report", "InvarianceReport"),
    "OutputRecord": ("driftscope.records.kinds.output", "OutputRecord"),
    "Program": ("driftscope.programs.protocol", "Program"),
    "ProgramError": ("driftscope.errors", "ProgramError"),
    "RecordError": ("driftscope.errors", "RecordError"),
    "RuntimeRefused": ("driftscope.errors", "RuntimeRefused"),
    "ShapeReport": ("driftscope.shapes.answer", "ShapeReport"),
    "Side": ("driftscope.records.kinds.output", "Side"),
    "Tolerance": ("driftscope.records.kinds.output", "Tolerance"),
    "TransformReport": ("driftscope.records.kinds.transform_report", "TransformReport"),
    "Verdict": ("driftscope.records.verdict", "Verdict"),
    "Verification": ("driftscope.records.kinds.verification", "Verification"),
    "Where": ("driftscope.records.finding", "Where"),
    "blame": ("driftscope.explain.blame.blaming", "blame"),
    "check_half": ("driftscope.explain.half.range", "check_half"),
    "check_invariance": ("driftscope.invariance.checking", "check_invariance"),
    "check_shapes": ("driftscope.shapes.checking", "check_shapes"),
    "check_transforms": ("driftscope.transforms.checking", "check_transforms"),
    "compare": ("driftscope.inquiry", "compare"),
    "compare_all": ("driftscope.inquiry", "compare_all"),
    "compare_values": ("driftscope.inquiry", "compare_values"),
    "cover": ("driftscope.shapes.covering.covered_program", "cover_shapes"),
    "exact": ("driftscope.accumulation.exact.reductions", ""),
    "inputs": ("driftscope.programs.feeding.feeds", "make_inputs"),
    "max_diff": ("driftscope.testing", "max_diff"),
    "onnx": ("driftscope.programs.loading.load", "onnx_program"),
    "pretty": ("driftscope.programs.inspection.listing", "listing_of"),
    "program": ("driftscope.programs.loading.load", "load_program"),
    "recorded": ("driftscope.programs.loading.load", "recorded"),
    "reveal": ("driftscope.accumulation.revealing.reveal_kernel", "reveal_sum"),
    "reproducible": ("driftscope.accumulation.exact.mode", "reproducible"),
    "studies": ("driftscope.studies", ""),
    "testing": ("driftscope.testing", ""),
    "torch": ("driftscope.programs.loading.load", "torch_program"),
    "vmap": ("driftscope.transforms.batching.batched", "vmap"),
}

# `from driftscope import *` takes no name that its user has given to torch or onnx; `ds.torch` and `ds.onnx` are there.
__all__ = [
    "Comparison",
    "CoveredProgram",
    "DependencyMissing",
    "DriftscopeError",
    "FailOn",
    "Finding",
    "InputError",
    "Inputs",
    "InvarianceReport",
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
    "check_invariance",
    "check_shapes",
    "check_transforms",
    "compare",
    "compare_all",
    "compare_values",
    "cover",
    "exact",
    "inputs",
    "max_diff",
    "pretty",
    "program",
    "recorded",
    "reproducible",
    "reveal",
    "studies",
    "testing",
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
        return sorted({*__all__, *_HOME})
