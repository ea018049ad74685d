"""Assertions and measurements for tests: what torch.testing's and onnx-diagnostic's users type, with the reason.

.. code-block:: python

    import driftscope as ds

    ds.testing.assert_close(actual, expected)            # torch.testing's signature and decisions, all mismatches
    ds.testing.assert_same(model, "model.onnx", inputs)  # the verdict of ds.compare as an assertion
    ds.testing.assert_transforms(loss, batch)            # vmap, grad, ... are still the plain program
    ds.testing.assert_invariant(model, inputs)           # batch, threads, layout, run ... do not change the result
    ds.max_diff(expected, got, hist=True)                # {"abs": ..., "rel": ..., "sum": ..., "n": ..., "dnan": ...}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from driftscope.comparison.closeness import Mismatch, Rules, mismatches
from driftscope.comparison.leaves import place_words
from driftscope.comparison.measuring.discrepancy import HISTOGRAM, combine, incomparable, leaf_discrepancy
from driftscope.comparison.measuring.metrics import Drift
from driftscope.comparison.pairing import pair_leaves
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.programs.protocol import InputsLike, ProgramLike
from driftscope.programs.value_trees import flatten
from driftscope.records.listeners import listeners
from driftscope.records.verdict import FailOn, FailOnName
from driftscope.records.words import floors

__all__ = ["assert_close", "assert_invariant", "assert_same", "assert_transforms", "max_diff"]

Floor = float | Mapping[str, float]

#: Mismatches written out in one message; a person reads the first few.
_WRITTEN_OUT = 20


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
    floor: Floor | None = None,
) -> None:
    """Assert that two values, or two trees of them, are close.

    The signature and the decisions are those of ``torch.testing.assert_close``; the message names *every* leaf that
    is not close, with its path, its worst element in ulps, and what to do next.

    Parameters
    ----------
    actual, expected : tensor, array, number, or sequences and mappings of them
    allow_subclasses, rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride
        As in torch: both tolerances or none; ``|actual - expected| <= atol + rtol * |expected|``.
    msg : str or callable
        Instead of the message, or a function of it.
    floor : float or mapping of path to float
        Noise floor, the root mean square of ordinary rounding, absolute (``Side.floor`` in a record). The message
        then also says how many floors the difference is. It never changes the decision.

    Raises
    ------
    AssertionError
        If a leaf is not close, or the structures differ.
    ValueError
        If only one of ``rtol`` and ``atol`` is given.
    TypeError
        If two leaves cannot be compared.
    """
    __tracebackhide__ = True
    rules = Rules(
        allow_subclasses, rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride
    )  # fmt: skip
    found = mismatches(actual, expected, rules)
    if not found:
        return
    if isinstance(msg, str):
        raise AssertionError(msg)
    text = _describe(found, floor)
    raise AssertionError(msg(text) if callable(msg) else text)


def assert_same(
    a: ProgramLike,
    b: ProgramLike,
    inputs: InputsLike | None = None,
    *,
    fail_on: FailOnName = "precision",
    **options: Any,
) -> None:
    """Assert that two programs are the same program on these inputs.

    Parameters
    ----------
    a, b : anything ``ds.program`` accepts
        ``a`` is the reference.
    inputs : anything ``ds.inputs`` accepts
    fail_on : {"different", "precision", "function", "rounding", "never"}
        From which verdict on to fail; an INCONCLUSIVE comparison counts with ``"precision"``. ``"function"`` also
        fails where two different functions give the same bits on these inputs.
    options
        As for ``ds.compare``.

    Raises
    ------
    AssertionError
        With the whole report, if the verdict is bad enough.
    ValueError
        If ``fail_on`` is none of the five.
    """
    __tracebackhide__ = True
    limit = FailOn(fail_on)
    # The main job stands below this room but pulls in every runtime; assert_close must not pay for that.
    from driftscope.inquiry import compare
    from driftscope.report.terminal.comparison import render

    comparison = compare(a, b, inputs, **options)
    failed = limit.fails(comparison.verdict, functions_differ=comparison.functions_differ)
    for listener in listeners:
        listener(comparison, failed)
    if failed:
        raise AssertionError(render(comparison))


def _without_function(fail_on: str) -> FailOn:
    """A limit for what has outcomes, and no function in float64 besides."""
    limit = FailOn(fail_on)
    if limit is FailOn.FUNCTION:
        raise ValueError(f"fail_on={fail_on!r} is for comparisons; give different, precision, rounding or never")
    return limit


def _checked(expected: Mapping[str, str], outcomes: Mapping[str, str]) -> None:
    """Refuse an expectation that nothing was checked for: it would hold whatever happens."""
    unknown = [name for name in expected if name not in outcomes]
    if unknown:
        raise ValueError(f"expect names {', '.join(map(repr, unknown))}; checked were {', '.join(outcomes)}")


def assert_transforms(
    function: Callable[..., Any],
    *examples: Any,
    transforms: Iterable[str] | None = None,
    expect: Mapping[str, str] | None = None,
    fail_on: FailOnName = "precision",
    **options: Any,
) -> None:
    """Assert that function transforms keep the plain program.

    Parameters
    ----------
    function : callable
    *examples : tree
        Its arguments with the mapped axis.
    transforms : iterable of str or None
        As for ``ds.check_transforms``; None takes its default.
    expect : mapping of str to str or None
        Transforms whose outcome is known and accepted, as ``{"vmap": "refused"}``; another outcome of these fails.
    fail_on : {"different", "precision", "rounding", "never"}
        ``different``: values that are wrong. ``precision``: also refusals, results that do not repeat, and findings
        that are no notes. ``rounding``: also rounding.
    options
        As for ``ds.check_transforms``: ``in_dims``, ``randomness``.

    Raises
    ------
    AssertionError
        With the outcomes, places and edits.
    ValueError
        If ``fail_on`` is none of the four, or ``expect`` names what was not checked.
    """
    __tracebackhide__ = True
    limit = _without_function(fail_on)
    from driftscope.report.terminal.transforms import outcome_fails, render
    from driftscope.transforms.checking import check_transforms

    chosen: dict[str, Any] = {} if transforms is None else {"transforms": tuple(transforms)}
    record = check_transforms(function, *examples, **chosen, **options)
    known = expect or {}
    _checked(known, record.outcomes)
    surprises = [
        f"{name}: {outcome}, expected {known[name]}"
        for name, outcome in record.outcomes.items()
        if name in known and outcome != known[name]
    ]
    others = [name for name in record.outcomes if name not in known]
    failing = [name for name in others if outcome_fails(record.outcomes[name], limit)]
    acting = limit in (FailOn.PRECISION, FailOn.ROUNDING)
    found = acting and any(not f.note and set(f.transforms or (f.transform,)) & set(others) for f in record.findings)
    if surprises or failing or found:
        raise AssertionError("\n".join([*surprises, render(record)]))


def assert_invariant(
    model: Any, inputs: Any = None, *, fail_on: FailOnName = "precision", expect: Mapping[str, str] | None = None,
    **options: Any,
) -> None:  # fmt: skip
    """Assert that a result does not depend on how the program is run.

    Parameters
    ----------
    model : anything ``ds.program`` accepts
    inputs : anything ``ds.inputs`` accepts
    fail_on : {"different", "precision", "rounding", "never"}
        ``different``: values that rounding does not explain, and rows that meet. ``precision``: also refusals.
        ``rounding``: unless all bits are the same.
    expect : mapping of str to str or None
        Axes whose outcome is known and accepted, as ``{"batch": "different"}``; another outcome of these fails.
    options
        As for ``ds.check_invariance``: ``axes``, ``batch``.

    Raises
    ------
    AssertionError
        With the outcomes, the place and the change that was tried.
    ValueError
        If ``fail_on`` is none of the four, or ``expect`` names what was not checked.
    """
    __tracebackhide__ = True
    limit = _without_function(fail_on)
    from dataclasses import replace

    from driftscope.invariance.checking import check_invariance
    from driftscope.report.sheets.invariance import record_fails, render

    record = check_invariance(model, inputs, **options)
    known = expect or {}
    _checked(known, record.outcomes)
    surprises = [
        f"{axis}: {record.outcomes[axis]}, expected {outcome}"
        for axis, outcome in known.items()
        if record.outcomes[axis] != outcome
    ]
    others = {axis: outcome for axis, outcome in record.outcomes.items() if axis not in known}
    if surprises or record_fails(replace(record, outcomes=others), limit):
        raise AssertionError("\n".join([*surprises, render(record, width=100, color=False)]))


def max_diff(expected: Any, got: Any, hist: bool | Iterable[float] | None = None) -> dict[str, Any]:
    """Measure the largest difference between two trees of tensors.

    Parameters
    ----------
    expected, got : tensor, array, number, None, or any nesting of containers of them
        A lone tensor may stand for a container of one, and a sequence for a mapping with as many values.
    hist : bool or iterable of float
        Also count how many differences exceed each threshold; True takes 0, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100.

    Returns
    -------
    dict
        ``abs``, ``rel`` (``|d| / (|expected| + 1e-3)``), ``sum`` of ``|d|``, ``n`` elements (a complex number
        has two), ``dnan`` elements that are NaN on one side only; ``argm``, the index of ``abs`` (for a single
        pair); ``dev``, 0 when two torch tensors share their device; ``dtype`` when the dtypes differ; ``rep``,
        ``{">0.01": count, ...}``, with ``hist``. Structures or shapes that differ give infinity in the first five.

    Notes
    -----
    As in onnx-diagnostic, equal infinities do not differ and neither do two NaNs. Unlike there, a NaN or an infinity
    against a number makes ``abs``, ``rel`` and ``sum`` infinite, 64-bit integers are subtracted exactly, and
    imaginary parts count for numpy arrays too.
    """
    thresholds = tuple(HISTOGRAM if hist is True else hist or ())
    left, right = flatten(expected)[0], flatten(got)[0]
    pairs = _pairs(expected, got, [path for path, _ in left], [path for path, _ in right])
    if pairs is None:
        return incomparable()
    parts = [leaf_discrepancy(left[i][1], right[j][1], thresholds) for i, j in pairs]
    lone = len(parts) == 1 and not (left[0][0].keys and right[0][0].keys)
    return parts[0] if lone else combine(parts)


def _pairs(expected: Any, got: Any, left: list[Any], right: list[Any]) -> list[tuple[int, int]] | None:
    """Pair two lists of paths; None when the structures differ."""
    if len(left) != len(right):
        return None
    by_path = pair_leaves([(p, 0) for p in left], [(p, 0) for p in right])
    pairs = [(p.index_a, p.index_b) for p in by_path if p.index_a is not None and p.index_b is not None]
    if len(pairs) == len(left):
        return pairs
    alike = isinstance(expected, Mapping) is isinstance(got, Mapping)
    bare = not (left[0].keys and right[0].keys)
    # Containers of one kind must agree path by path; a sequence against a mapping can only go by order.
    return None if alike and not bare else [(i, i) for i in range(len(left))]


# --- the message ---------------------------------------------------------------------------------------------------


def _describe(found: list[Mismatch], floor: Floor | None) -> str:
    head = "1 value is not close" if len(found) == 1 else f"{len(found)} values are not close"
    blocks = ["\n".join([f"{m.path}: {m.what}", *_details(m, _floor_at(m, floor))]) for m in found[:_WRITTEN_OUT]]
    if len(found) > _WRITTEN_OUT:
        blocks.append(f"and {len(found) - _WRITTEN_OUT} more: {', '.join(str(m.path) for m in found[_WRITTEN_OUT:])}")
    return "\n\n".join([head, *blocks, _next_step(found, floor)])


def _floor_at(mismatch: Mismatch, floor: Floor | None) -> float | None:
    return floor.get(str(mismatch.path)) if isinstance(floor, Mapping) else floor


def _details(mismatch: Mismatch, floor: float | None) -> list[str]:
    drift = mismatch.drift
    if drift is None or not drift.differing:
        return []
    lines = []
    if drift.worst_index is not None and drift.worst_values is not None:
        expected, actual = drift.worst_values
        label = "worst" if drift.max_abs else "first"
        sizes = f"  ({_sizes(drift)})" if drift.max_abs else ""
        lines.append(f"  {label}{place_words(drift.worst_index)}: expected {expected}, got {actual}{sizes}")
    if drift.special_differ:
        lines.append(
            f"  NaN in expected only: {drift.nan_a}, in actual only: {drift.nan_b}; "
            f"infinity against another value: {drift.inf_differ}"
        )
    if drift.rms:
        lines.append(f"  rms difference {drift.rms:.3g}{_in_floors(drift.rms, floor)}")
    return lines


def _sizes(drift: Drift) -> str:
    ulp = "" if drift.max_ulp is None else f", largest {drift.max_ulp:.6g} ulp"
    return f"off by {drift.max_abs:.3g}, largest relative {drift.max_rel:.3g}{ulp}"


def _in_floors(rms: float, floor: float | None) -> str:
    if not floor:
        return ""
    drift = rms / (math.sqrt(2.0) * floor)
    ordinary = drift <= THRESHOLDS.rounding
    words = "ordinary rounding for this value" if ordinary else "more than its rounding explains"
    return f" = {floors(drift, 3)} (noise floor {floor:.3g}): {words}"


def _next_step(found: list[Mismatch], floor: Floor | None) -> str:
    if all(m.drift is None for m in found):
        return "next: make the structures, shapes and dtypes agree first"
    if floor is None:
        return "next: driftscope.compare(a, b, inputs) tells rounding from a bug and names where the programs part"
    return "next: driftscope.compare(a, b, inputs) names where the programs part"
