"""What is kept of one output of a comparison: both sides, every distance, a tolerance that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex, overload

from driftscope.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A tolerance that fits one output in its dtype, and the reason for it.

    ``rtol`` and ``atol`` are what ``torch.testing.assert_close`` expects: ``|b - a| <= atol + rtol * |a|``.
    """

    rtol: float
    atol: float
    reason: str


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one side at one output.

    Parameters
    ----------
    dtype, shape
        Of the native value.
    floor : float or None
        Root-mean-square error that ordinary rounding of this program causes here, absolute.
    error : float or None
        rms of (native - its own lift), absolute.
    error_floors : float or None
        The same in units of ``floor``.
    """

    dtype: str
    shape: tuple[int, ...] | None
    floor: float | None = None
    error: float | None = None
    error_floors: float | None = None


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """How one output differs.

    Parameters
    ----------
    path : str
        Place in the output tree, as ``out['logits']``.
    verdict, reason
        The verdict for this output and one sentence of reason.
    kind : str
        ``"same"``, ``"value"``, ``"nan"``, ``"dtype"``, ``"shape"``, ``"structure"`` or ``"kind"``: the most
        serious way in which the native values differ.
    count, mismatched : int
        Elements, and those whose bits differ.
    max_ulp, max_abs, max_rel, rms : float or None
        Native drift, b - a.
    worst_index : tuple of int or None
        Where ``max_abs`` is.
    worst_values : tuple of two str or None
        The two values there.
    floors : float or None
        rho, the native drift in floors (DESIGN section 1): tensor, slices and tail, the largest.
    lifted : float or None
        delta64, the lifted drift, relative: over the tensor or one slice, whichever is furthest above its limit.
    lifted_threshold : float or None
        The tau it was judged against.
    closer : str or None
        ``"a"``, ``"b"`` or ``"equal"``: which side is closer to float64.
    lifted_whole : float or None
        rms(B64 - A64) / rms(A64) over the whole output, where ``lifted`` is that of a slice.
    a, b : Side or None
        Each side's own numbers; None when the output is missing there.
    tolerance : Tolerance or None
        A suggestion with its reason.
    """

    path: str
    verdict: Verdict
    reason: str
    kind: str
    count: int = 0
    mismatched: int = 0
    max_ulp: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    rms: float | None = None
    worst_index: tuple[int, ...] | None = None
    worst_values: tuple[str, str] | None = None
    floors: float | None = None
    lifted: float | None = None
    lifted_threshold: float | None = None
    closer: str | None = None
    a: Side | None = None
    b: Side | None = None
    tolerance: Tolerance | None = None
    lifted_whole: float | None = None

    @property
    def lifted_size(self) -> float | None:
        """The lifted drift of the output as a whole, whatever one slice of it shows."""
        return self.lifted if self.lifted_whole is None else self.lifted_whole

    def __repr__(self) -> str:
        # What a prompt shows of ``c.outputs``: one line each, not every measurement.
        sizes = [f"max abs {self.max_abs:.1e}"] if self.max_abs else []
        sizes += [f"{self.max_ulp:,.0f} ulp"] if self.max_ulp else []
        kinds = dict.fromkeys(f"{side.dtype} {side.shape}" for side in (self.a, self.b) if side is not None)
        return f"<Output {self.path}: {', '.join([str(self.verdict), *sizes])}; {' and '.join(kinds) or self.kind}>"


class Outputs(tuple[OutputRecord, ...]):
    """The outputs of a comparison in the program's order, found by path too: ``outputs["out['logits']"]``."""

    __slots__ = ()

    @overload
    def __getitem__(self, key: SupportsIndex) -> OutputRecord: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[OutputRecord, ...]: ...
    @overload
    def __getitem__(self, key: str) -> OutputRecord: ...

    def __getitem__(self, key: SupportsIndex | slice | str) -> OutputRecord | tuple[OutputRecord, ...]:
        """Return an output by position or by path; of a path the last name is enough where only one output has it."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        found = [o for o in self if o.path == key] or [o for o in self if o.path.endswith((f"[{key!r}]", f".{key}"))]
        if len(found) == 1:
            return found[0]
        several = f"{len(found)} outputs end in {key!r}" if found else f"there is no output {key!r}"
        raise KeyError(f"{several}; the outputs are {', '.join(o.path for o in self) or 'none'}")


def widest_tolerance(outputs: Iterable[OutputRecord]) -> OutputRecord | None:
    """Return the output whose tolerance is the widest, the one to use when one is used for all; None for none.

    What could not be judged has no tolerance to use.
    """
    known = [o for o in outputs if o.tolerance is not None and o.verdict is not Verdict.INCONCLUSIVE]
    return max(known, key=lambda o: (o.tolerance.rtol, o.tolerance.atol) if o.tolerance else (0.0, 0.0), default=None)
