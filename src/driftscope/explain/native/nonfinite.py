"""Where NaN and infinity come from: the first operator that makes one of finite numbers.

The program's graph is evaluated once more, every result rounded to the format it is declared in, so that what
overflows there overflows here. Infinities that a program stores (a mask) belong to nobody; what is computed from
one by a softmax over a row that holds nothing else is a new event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from driftscope.comparison.leaves import LeafComparison
from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.locate.operators import family
from driftscope.lift.evidence import Evidence
from driftscope.lift.side_lift import SideLift
from driftscope.lift.steps import Kind, Lifted, LiftedOutput, Step
from driftscope.records.finding import Finding, Where
from driftscope.records.words import beside_whole, counted

# What float32 holds.
_WIDE = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A step that makes NaN or infinity.

    Parameters
    ----------
    where : Where
    nan, infinite : int
        Elements of its result that are.
    low, high : float
        Range of its inputs, infinite ones included.
    cause : str
        One sentence; empty when the operator's inputs do not say it.
    fix : str
    format : str
        The format its result is declared in.
    """

    where: Where
    nan: int
    infinite: int
    low: float
    high: float
    cause: str
    fix: str
    format: str


@dataclass(slots=True)
class _Origins:
    """An observer that rounds every result to its format and remembers where non-finite ones come from."""

    exact: Collection[str] = ()
    told: Callable[[Step, Sequence[torch.Tensor | None]], None] | None = None
    source: dict[str, NonFinite | None] = field(default_factory=dict)

    def __call__(self, step: Step) -> list[torch.Tensor | None] | None:
        outputs = [_declared(v, fmt) for v, fmt in zip(step.outputs, step.formats, strict=True)]
        if step.constant or any(name in self.exact for name in step.output_names):
            return None
        if self.told is not None:
            self.told(step, outputs)
        for name, value in zip(step.output_names, outputs, strict=False):
            if value is None or not value.dtype.is_floating_point or bool(torch.isfinite(value).all()):
                self.source.pop(name, None)
            else:
                self.source[name] = self._origin(step, value, step.outputs[0])
        return outputs

    def _origin(self, step: Step, value: torch.Tensor, exact: torch.Tensor | None) -> NonFinite | None:
        known = [self.source[n] for n in step.input_names if n in self.source]
        given = next((e for e in known if e is not None), None)
        if given is not None:
            return given
        floats = [v for v in step.inputs if v is not None and v.dtype.is_floating_point and v.numel()]
        stored = any(not bool(torch.isfinite(v).all()) for v in floats)
        if step.rounding.kind is Kind.EXACT and not (exact is not None and _overflows(value, exact)):
            stored = True  # it only selects or moves: the infinity is a number of the call
        news = bool(value.isnan().any()) and not any(bool(v.isnan().any()) for v in floats)
        # An infinity that came in from a constant and goes out again is as it was meant.
        return _event(step, value, exact, floats) if news or not stored else None


def _declared(value: torch.Tensor | None, fmt: torch.dtype | None) -> torch.Tensor | None:
    if value is None or fmt is None or not fmt.is_floating_point or not value.dtype.is_floating_point:
        return value
    return value.to(fmt).to(value.dtype)


def _overflows(value: torch.Tensor, exact: torch.Tensor) -> bool:
    return exact.shape == value.shape and bool((torch.isfinite(exact) & value.isinf()).any())


def _event(step: Step, value: torch.Tensor, exact: torch.Tensor | None, inputs: Sequence[torch.Tensor]) -> NonFinite:
    fmt = next((f for f in step.formats if f is not None), torch.float64)
    bare = [v[~v.isnan()] for v in inputs]
    low = min((float(v.min()) for v in bare if v.numel()), default=float("nan"))
    high = max((float(v.max()) for v in bare if v.numel()), default=float("nan"))
    cause, fix = _cause(step, value, exact, inputs, fmt)
    where = dataclasses.replace(step.where, node=step.name, operator=step.operator)
    return NonFinite(
        where, int(value.isnan().sum()), int(value.isinf().sum()), low, high, cause, fix,
        str(fmt).removeprefix("torch."),
    )  # fmt: skip


def _cause(
    step: Step, value: torch.Tensor, exact: torch.Tensor | None, inputs: Sequence[torch.Tensor], fmt: torch.dtype
) -> tuple[str, str]:
    """The usual cause at this operator, as far as its inputs show it."""
    if exact is not None and _overflows(value, exact):
        peak = float(exact[torch.isfinite(exact)].abs().max())
        name = str(fmt).removeprefix("torch.")
        reaches = (
            f"reaches {peak:.3g}"
            if bool(torch.isfinite(exact).all())
            else f"exceeds {torch.finfo(exact.dtype).max:.3g}"
        )
        wider = "Keep this operator in float32, or scale" if bool((exact.abs() < _WIDE).all()) else "Scale"
        return f"The result {reaches}, and the largest {name} is {torch.finfo(fmt).max:.5g}.", f"{wider} its inputs."
    piece, first = family(step.operator), inputs[0] if inputs else None
    last = inputs[-1] if inputs else None
    if first is None or last is None:
        return "", ""
    if piece == "div" or piece in ("reciprocal", "rsqrt"):
        divisor = last if piece == "div" else first
        zeros = int((divisor == 0).sum())
        if zeros:
            return f"{zeros} of {divisor.numel()} divisors are zero.", "Add an epsilon that the format can hold."
    if piece in ("log", "log2", "log10", "log1p"):
        edge = -1.0 if piece == "log1p" else 0.0
        count = int((first <= edge).sum())
        return f"The logarithm is taken of {count} numbers that are {edge:g} or less.", "Clamp its input from below."
    if piece in ("sqrt", "rsqrt", "pow") and bool((first < 0).any()):
        return f"A root is taken of {int((first < 0).sum())} negative numbers.", "Clamp its input at zero."
    infinite, endless = (any(bool(f(v).any()) for v in inputs) for f in (torch.isinf, torch.isposinf))
    masked = infinite or any(v is not None and v.dtype == torch.bool for v in step.inputs)
    if piece in ("softmax", "logsoftmax", "attention") and masked and not endless:
        return (
            "A softmax over a row in which every element is -inf divides zero by zero: the row is masked completely.",
            "Mask with the smallest finite number of the format, or leave masked rows out.",
        )
    if infinite:
        return "It combines infinities: inf - inf and 0 * inf are NaN.", "Look at where its inputs become infinite."
    if piece in ("layernorm", "groupnorm", "batchnorm"):
        return "A row has no variance, and the epsilon is zero in this format.", "Use a larger epsilon."
    if piece in ("asin", "acos", "atanh", "acosh"):
        return "Its input is outside the function's domain.", "Clamp its input to the domain."
    return "", ""


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the outputs of a graph become NaN or infinite in its declared formats.

    Parameters
    ----------
    events : dict of str to NonFinite
        By the path of the output; empty when all are finite.
    outputs : list of LiftedOutput
        What the graph gives when every result is rounded to its format.
    """

    events: dict[str, NonFinite]
    outputs: list[LiftedOutput]


def origins(
    graph: Lifted,
    exact: Collection[str] = (),
    told: Callable[[Step, Sequence[torch.Tensor | None]], None] | None = None,
) -> Origins:
    """Find for every output of a lifted graph that is not finite where that began.

    Parameters
    ----------
    graph : Lifted
    exact : collection of str
        Names of values that are not rounded to their formats.
    told : callable or None
        Told each step that depends on the inputs, and its results rounded to their formats.
    """
    watch = _Origins(exact, told)
    outputs = graph.run(observe=watch)
    found = {str(leaf.path): watch.source.get(leaf.name) for leaf in outputs}
    missing = {path for path, event in found.items() if event is None}
    if missing and any(watch.source.values()):
        # An output that is a view of another value has a name of its own.
        last = [e for e in watch.source.values() if e is not None][-1]
        for leaf in outputs:
            value = leaf.value
            if str(leaf.path) in missing and value is not None and value.dtype.is_floating_point:
                found[str(leaf.path)] = last if not bool(torch.isfinite(value).all()) else None
    return Origins({path: event for path, event in found.items() if event is not None}, outputs)


class Behind(Protocol):
    """Knows what the native values of a side say of the infinities and NaN that an output of it has alone."""

    def __call__(self, side: str, index: int, own: torch.Tensor, other: torch.Tensor) -> tuple[str, Where]:
        """What leads to them in words, "" where that is not known, and its step, or that whose kernel makes them."""
        ...

    def kernel(self, side: str, index: int, own: torch.Tensor, other: torch.Tensor) -> Finding | None:
        """The kernel of a side that gives another class of value than its operands have, where that is all of it."""
        ...


def origin_findings(
    evidence: Evidence,
    leaves: Sequence[LeafComparison],
    values: tuple[Sequence[Any], Sequence[Any]],
    behind: Behind | None = None,
) -> list[Finding]:
    """Say on each side where NaN or infinity in its results comes from.

    A note where the other side has them in the same places, unless a result is NaN all over.
    """
    found = []
    all_nan = any(leaf.all_nan for leaf in leaves)
    for k, (name, side) in enumerate((("A", evidence.a), ("B", evidence.b))):
        results = values[k]
        if side.graph is None or not any(_broken(v) for v in results):
            continue
        try:
            seen = origins(side.graph)
        except (CannotLift, DriftscopeError, RuntimeError):
            continue  # what cannot be evaluated in its own formats has said so before
        alone = [(leaf, mark) for leaf in leaves if (mark := _alone(leaf, values, k)) is not None and bool(mark.any())]
        caused = any(_reaches(seen, _index(leaf, k), mark) for leaf, mark in alone)
        for path, event in list(seen.events.items())[:1]:
            found.append(_as_run(_finding(name, path, event, not (all_nan or caused)), seen, results))
        if not caused:
            found += [f for leaf, mark in alone if (f := _native_finding(evidence, leaf, values, k, mark, behind))][:1]
    if behind is not None and not any(f.code == "R003" for f in found):
        found += _odd_kernels(leaves, values, behind)
    return found


def _as_run(found: Finding, seen: Origins, results: Sequence[Any]) -> Finding:
    """Say of what formats an event was seen in, where the run itself gave NaN and infinity in other places."""
    for native, declared in zip(results, seen.outputs, strict=False):
        if str(declared.path) != found.where.output or declared.value is None or not _floats(native):
            continue
        broken = ~torch.isfinite(_readable(native)).cpu()
        if broken.shape == declared.value.shape and not torch.equal(broken, ~torch.isfinite(declared.value).cpu()):
            have = f"this run has NaN or infinity at {counted(int(broken.sum()), 'element')} of {declared.path}"
            what = f"with every result rounded to its declared format, {found.what}; {have}"
            return dataclasses.replace(found, what=what)
    return found


def _odd_kernels(
    leaves: Sequence[LeafComparison], values: tuple[Sequence[Any], Sequence[Any]], behind: Behind
) -> list[Finding]:
    """The first kernel that is all there is to infinities and NaN in other places, where there is one."""
    for leaf in leaves:
        if leaf.kind != "nan" or leaf.index_a is None or leaf.index_b is None:
            continue
        pair = [values[s][_index(leaf, s)] for s in (0, 1)]
        if not all(map(_floats, pair)) or pair[0].shape != pair[1].shape:
            continue
        own = [_readable(v).detach().cpu().double() for v in pair]
        for k in (1, 0):
            found = behind.kernel("AB"[k], _index(leaf, k), own[k], own[1 - k])
            if found is not None:
                return [dataclasses.replace(found, where=dataclasses.replace(found.where, output=str(leaf.path)))]
    return []


def _native_finding(
    evidence: Evidence, leaf: LeafComparison, values: tuple[Sequence[Any], Sequence[Any]], k: int, mark: torch.Tensor,
    behind: Behind | None,
) -> Finding | None:  # fmt: skip
    """Say what the formats of a graph do not: a value carried to the end of a domain, or a kernel that is off."""
    words, where, index = "", Where(), _index(leaf, k)
    if behind is not None:
        own, other = (_readable(values[s][_index(leaf, s)]).detach().cpu().double() for s in (k, 1 - k))
        words, where = behind("AB"[k], index, own, other)
    if words and where.node == evidence.places.get("N004", Where()).node:
        return None  # said of the output already
    if words:
        return Finding("N017", f"{words} ({counted(int(mark.sum()), 'element')})", where=where, note=True)
    side = evidence.b if k else evidence.a
    found = _kernel_finding("AB"[k], side, leaf, index, mark)
    return (
        found if found is None else dataclasses.replace(found, where=dataclasses.replace(where, output=str(leaf.path)))
    )


def _index(leaf: LeafComparison, side: int) -> int:
    return int((leaf.index_b if side else leaf.index_a) or 0)


def _alone(leaf: LeafComparison, values: tuple[Sequence[Any], Sequence[Any]], side: int) -> torch.Tensor | None:
    """Mark the elements that are NaN or infinite on this side and not on the other."""
    if leaf.kind != "nan" or leaf.index_a is None or leaf.index_b is None:
        return None
    own, other = values[side][_index(leaf, side)], values[1 - side][_index(leaf, 1 - side)]
    if not _floats(own) or not _floats(other) or own.shape != other.shape:
        return None
    return (~torch.isfinite(_readable(own)) & torch.isfinite(_readable(other)).to(own.device)).cpu()


def _reaches(seen: Origins, index: int, mark: torch.Tensor) -> bool:
    """Whether the graph in its own formats has one of these elements as NaN or infinite too."""
    value = seen.outputs[index].value if index < len(seen.outputs) else None
    if value is None or value.shape != mark.shape:
        return True  # nothing says that it has not
    return bool((~torch.isfinite(value).cpu() & mark).any())


def _kernel_finding(name: str, side: SideLift, leaf: LeafComparison, index: int, mark: torch.Tensor) -> Finding | None:
    """Say that a side leaves the range of its format where neither its results nor what leads to them do."""
    exact, fmt = side.clean[index].value, side.clean[index].format
    if exact is None or fmt is None or exact.shape != mark.shape or not fmt.is_floating_point:
        return None
    peak = exact.cpu()[mark].abs()
    if not bool(torch.isfinite(_declared(peak, fmt)).all()):  # type: ignore[arg-type]
        return None
    return Finding(
        "R003",
        f"{name} returns NaN or infinity at {counted(int(mark.sum()), 'element')} whose exact values, up to "
        f"{float(peak.max()):.3g}, {str(fmt).removeprefix('torch.')} can hold",
        "" if _given(side.graph) else "No operator of its graph leaves its format's range there: a kernel does inside.",
        where=Where(output=str(leaf.path)),
        evidence={"side": name, "count": int(mark.sum()), "exact": float(peak.max())},
    )


def _given(graph: Lifted | None) -> bool:
    """Whether a program is given, or stores, NaN or infinities: a kernel may then pick what another one passes by."""
    made, given = set[str](), False

    def see(step: Step) -> None:
        nonlocal given
        floats = (v for n, v in zip(step.input_names, step.inputs, strict=False) if v is not None and n not in made)
        given = given or not all(bool(torch.isfinite(v).all()) for v in floats if v.dtype.is_floating_point)
        made.update(step.output_names)

    if graph is not None:
        graph.run(observe=see)
    return given


def _floats(value: Any) -> bool:
    floating = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return floating and value.layout is torch.strided and not value.is_nested


def _readable(value: torch.Tensor) -> torch.Tensor:
    # torch looks for infinities in no format of one byte; float32 holds all their values.
    return value.float() if value.element_size() == 1 else value


def _broken(value: Any) -> bool:
    return _floats(value) and not bool(torch.isfinite(_readable(value)).all())


def _finding(side: str, path: str, event: NonFinite, note: bool) -> Finding:
    kinds = [f"{n} {word}" for n, word in ((event.nan, "NaN"), (event.infinite, "infinities")) if n]
    low, high = beside_whole(event.low, 4), beside_whole(event.high, 4)
    near = f"are all {low}" if event.low == event.high else f"are all close to {low}"
    return Finding(
        "N017",
        f"{event.where.node} ({event.where.operator}) is the first in {side} to create {' and '.join(kinds)}, in "
        f"{event.format}; its inputs there {near if low == high else f'range from {low} to {high}'}",
        event.cause,
        event.fix,
        dataclasses.replace(event.where, output=path),
        {"side": side, "nan": event.nan, "infinite": event.infinite, "low": event.low, "high": event.high},
        note,
    )
