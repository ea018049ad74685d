"""Exact matches: every constant of one program that stores, rounded, a constant of the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from driftscope.lift.onnx.graph import LiftedOnnx
from driftscope.lift.reconcile import matching, scalars
from driftscope.lift.reconcile.folds import all_folded, folds_are_known
from driftscope.lift.reconcile.matching import Repair, WeightIndex, merged
from driftscope.lift.reconcile.sides import (
    ReconciledSide,
    has_twin,
    is_tensor,
    may_be_rounded,
    one_side_only,
    with_exact_scalars,
)
from driftscope.lift.reconcile.subgraphs import OWN
from driftscope.lift.steps import Constant, LiftedOutput, Origin

# Different elements of a tensor that may be numbers, each by itself, and elements of it.
_FEW, _TABLE = 64, 4096


def rounded_literals(side: ReconciledSide) -> list[Repair]:
    """Literals that a kernel rounded on their way (rms_norm its epsilon), where the program writes them exactly too.

    Parameters
    ----------
    side : ReconciledSide
    """
    written = [c for c in side.constants if c.origin is Origin.LITERAL and c.value.dtype == torch.float64]
    numbers = scalars.Candidates(written, side.single)
    found = ((c, numbers.of(c)) for c in written if c.frontier)
    return [
        Repair(c.name, torch.full(c.value.shape, n[0].value, dtype=torch.float64), "scalar", n[0].words, c)
        for c, n in found
        if n
    ]


def exact_matches(side: ReconciledSide, others: Sequence[Constant], index: WeightIndex) -> list[Repair]:
    """Match the constants of one side with the other's; what is left, and what only subgraphs read, stays there.

    Parameters
    ----------
    side : ReconciledSide
    others : sequence of Constant
        Of the other program, its numbers as they are known to be.
    index : WeightIndex
        The other program's tensors.
    """
    numbers = scalars.Candidates(others, side.single)
    repairs: list[Repair] = []
    cast: list[Repair] = []
    for constant in side.constants:
        if constant.value.is_complex():
            number = _match_imaginary(constant, numbers)
            if number is not None:
                (repairs if constant.frontier else side.inner).append(number)
            # A table of rotations or a transformed filter: nobody rounds one, but native code computes it.
            elif constant.frontier and not has_twin(constant, others):
                side.left.append(constant)
            continue
        if not constant.value.dtype.is_floating_point:
            continue
        named = _match_tensor(constant, index, named=True) if may_be_rounded(constant) else None
        found = named or _match_number(constant, numbers)
        if found is not None:
            (repairs if constant.frontier else side.inner).append(found)
        elif not constant.frontier:
            inner = _match_tensor(constant, index) if may_be_rounded(constant) else None
            side.inner += [] if inner is None else [inner]
            if inner is None and may_be_rounded(constant):
                (side.inner_shared if index.holds(constant.value) else side.inner_left).append(constant)
        elif is_tensor(constant) or may_be_rounded(constant):
            if index.has(constant, side.index):
                continue
            wide = _before_its_cast(constant, side)
            if wide is None or index.has(wide, side.index):
                weight = _match_tensor(constant, index) or _match_elements(constant, numbers)
            else:
                weight = _match_tensor(wide, index)
            if weight is not None:
                repairs.append(weight)
            elif wide is not None:
                side.left.append(wide)
                cast.append(Repair(wide.name, wide.value.to(torch.float64), "table", OWN, wide))
            elif is_tensor(constant):
                side.left.append(constant)
        elif constant.origin is Origin.WEIGHT and constant.value.numel() == 1:
            single = float(constant.value)
            side.left += [] if _is_simple(single) or numbers.hold(single) else [constant]
    return [*cast, *(r for r in repairs if r.kind == "scalar" or not r.is_exact())]


def exact_repairs(a: ReconciledSide, b: ReconciledSide) -> tuple[list[Repair], list[Repair]]:
    """Repair every constant of one side that stores, rounded, a constant of the other.

    Parameters
    ----------
    a, b : ReconciledSide
        What is left of each without a partner stays there.
    """
    own_a, own_b = rounded_literals(a), rounded_literals(b)
    repairs_a = merged(own_a, exact_matches(a, with_exact_scalars(b.constants, own_b), b.index))
    # A number that A itself stores rounded is traced first, so that B is traced to the same exact number.
    repairs_b = merged(own_b, exact_matches(b, with_exact_scalars(a.constants, repairs_a), a.index))
    return one_side_only(repairs_a, repairs_b), repairs_b


def repairs_before_a_run(
    source: ReconciledSide, made: LiftedOnnx, outputs: Sequence[LiftedOutput], ulps: float
) -> list[Repair]:
    """What a graph that a runtime made of another program's needs to be that program, as far as no run has to tell.

    Parameters
    ----------
    source : ReconciledSide
    made : LiftedOnnx
    outputs : sequence of LiftedOutput
        Of the program, whose formats are those of the graph too.
    ulps : float
        As for :func:`~driftscope.lift.reconcile.folds.match_folds`.
    """
    numbers = made.attribute_numbers()
    if folds_are_known(source):
        side = ReconciledSide(made, outputs, source, [*made.stored_tensors(), *numbers])
        repairs = exact_matches(side, source.constants, source.index)
        folded = all_folded(side.left, source, ulps)
        if folded:
            return [*repairs, *folded]
    known = scalars.Candidates(source.constants, source.single)
    return [repair for number in numbers if (repair := _match_number(number, known)) is not None]


def _match_number(constant: Constant, numbers: scalars.Candidates) -> Repair | None:
    """Match a number, once or many times, with the one that the other program writes, or the only one made of some."""
    found = numbers.of(constant)
    if not found or (len(found) > 1 and found[0].derived):
        return None
    value = torch.full(constant.value.shape, found[0].value, dtype=torch.float64)
    return Repair(constant.name, value, "scalar", found[0].words, constant)


def _match_imaginary(constant: Constant, numbers: scalars.Candidates) -> Repair | None:
    """Match one number times i, as the angles of a transform have it, with the number or its negative."""
    value = constant.value
    if value.numel() != 1 or bool(value.real != 0):
        return None
    for sign in (1.0, -1.0):
        found = _match_number(dataclasses.replace(constant, value=sign * value.imag), numbers)
        if found is not None:
            return dataclasses.replace(found, value=torch.complex(0.0 * found.value, sign * found.value))
    return None


def _match_elements(constant: Constant, numbers: scalars.Candidates) -> Repair | None:
    """Match the elements of a table of numbers (scales of a Resize, a filter, powers of a decay) one by one.

    Each is a number that the other program writes, or was meant as it stands.
    """
    stored = constant.value
    if constant.origin is not Origin.WEIGHT or not stored.dim() or not 0 < stored.numel() <= _TABLE:
        return None
    first = float(stored.flatten()[0])
    if not _is_simple(first) and not numbers.may_be_written(first, stored.dtype):
        return None  # most tensors are told by their first element
    different, places = stored.unique(return_inverse=True)
    known = [_known(constant, element, numbers) for element in different] if different.numel() <= _FEW else [None]
    meant = [k for k in known if k is not None]
    words = dict.fromkeys(w for _, w in meant if w)
    if len(meant) < len(known) or not words:
        return None
    value = torch.tensor([number for number, _ in meant], dtype=torch.float64)[places]
    return Repair(constant.name, value, "scalar", " and ".join(words), constant)


def _known(constant: Constant, element: torch.Tensor, numbers: scalars.Candidates) -> tuple[float, str] | None:
    """The number that an element was meant as, with the words of the other program's; as it stands if it is simple."""
    return _written(constant, element, numbers) or ((float(element), "") if _is_simple(float(element)) else None)


def _is_simple(number: float) -> bool:
    return scalars.significant_bits(number) <= scalars.SIMPLE_BITS


def _written(constant: Constant, element: torch.Tensor, numbers: scalars.Candidates) -> tuple[float, str] | None:
    """The number that the other program writes for an element, and its words; a filter may store it with its sign."""
    for sign in (1.0, -1.0):
        found = numbers.of(dataclasses.replace(constant, value=sign * element), derived=False)
        if found:
            return sign * found[0].value, found[0].words if sign > 0.0 else f"-({found[0].words})"
    return None


def _before_its_cast(constant: Constant, side: ReconciledSide) -> Constant | None:
    """A computed constant as its program stores it: in a wider format, of which it is the rounding and no more."""
    found = matching.match_weight(constant, side.index) if constant.origin is Origin.COMPUTED else None
    if found is None:
        return None
    (source,) = (c for c in side.constants if c.name in found.sources)
    return dataclasses.replace(constant, value=found.value.to(source.value.dtype))


def _match_tensor(constant: Constant, index: WeightIndex, named: bool = False) -> Repair | None:
    if not index.wider_than(constant.value.dtype):
        return None  # nothing can have been rounded to this format
    if named:  # in a narrow format weights near one are ones, and some other tensor may hold ones as well
        return matching.match_weight(constant, index, named)
    return matching.match_weight(constant, index) or matching.match_joined(constant, index)
