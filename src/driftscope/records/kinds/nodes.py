"""What is known of one node of a comparison: how far the two programs are apart there, and each from float64."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One value along the way through B, beside A's.

    Parameters
    ----------
    name, operator : str
        B's node.
    value : str
        Name of B's value.
    shape : tuple of int
    module, file, expression : str or None
        As far as either graph knows them.
    line : int or None
    counterpart : str
        A's node that does the same; empty when none was found.
    lifted : float or None
        rms(B64 - A64) / rms(A64) of the two values in float64, each program on its own values; elements are compared
        in order of size where the shapes differ. None without a counterpart.
    fed : float or None
        The same with B given A's values wherever A has them: what this node, and those before it without a
        counterpart, add themselves. None where that was not measured.
    error_a, error_b : float or None
        Distance of the native value from the side's own float64 value, in floors of that value: 1 is ordinary
        rounding of everything before it. None where the native value cannot be read.
    reads : tuple of str
        Nodes of B whose values this one reads.
    counterpart_reads : tuple of str
        Nodes of A, among the counterparts, whose values the counterpart reads, directly or through others.
    """

    name: str
    operator: str
    value: str
    shape: tuple[int, ...] = ()
    module: str | None = None
    file: str | None = None
    line: int | None = None
    expression: str | None = None
    counterpart: str = ""
    lifted: float | None = None
    error_a: float | None = None
    error_b: float | None = None
    fed: float | None = None
    reads: tuple[str, ...] = ()
    counterpart_reads: tuple[str, ...] = ()
