"""Numbers that a format makes one and an exporter stores once: told apart by who reads them.

In half precision ``1 - eps`` and 1 are one number. Where both are written, the file stores one constant for both, and
no single number in its place is right everywhere. And a kernel that returns the argument of a softplus from 20 on, and
one that computes ``log(1 + exp(x))`` to the end, are one function in float32 and narrower, and two in float64, where
2e-9 of 20 can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from driftscope.lift.outline import tell_steps
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.reconcile.scalars import near, nobodys, numbers
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.reconcile.solving import ConstantTables
from driftscope.lift.steps import Constant, Lifted, Origin, Step, plain_name, use_of

# Proposals made at most: each costs one lifted run. Readers of a constant that are worth a question.
_MOST, _FEWEST = 12, 2
# Half an ulp of float32.
_UNSEEN = 2.0**-25


def shared_numbers(
    graph: Lifted, own: Sequence[Constant], others: Sequence[Constant], repairs: Sequence[Repair]
) -> list[list[Repair]]:
    """Propose another number for some of the steps that read one stored number.

    Parameters
    ----------
    graph : Lifted
    own, others : sequences of Constant
        Its constants and the other program's, with the numbers that they are known to be.
    repairs : sequence of Repair
        In force in it.

    Returns
    -------
    list of list of Repair
        Each a proposal of its own, for all steps of one operator that read the constant at one place. The caller
        certifies it by the whole program.
    """
    pool = numbers(others)
    meant = {r.name: r.value for r in repairs}
    wanted = {}
    for constant in own:
        found = near(constant, pool)
        if found:
            wanted[constant.name] = constant, found
    if not wanted:
        return []
    readers = _readers(graph, set(wanted))
    proposals = []
    for name, (constant, found) in wanted.items():
        uses = readers.get(name, {})
        if sum(map(len, uses.values())) < _FEWEST:
            continue
        for number in found:
            value = torch.full(constant.value.shape, number.value, dtype=torch.float64)
            if torch.equal(value, meant.get(name, constant.value.to(torch.float64))):
                continue
            proposals += [[Repair(use_of(name, step), value, "scalar", number.words, constant) for step in steps]
                          for steps in uses.values()]  # fmt: skip
    return proposals[:_MOST]


def _readers(graph: Lifted, names: set[str]) -> dict[str, dict[tuple[str, int], list[str]]]:
    """Which steps read each of these constants, by operator and place."""
    found: dict[str, dict[tuple[str, int], list[str]]] = {}

    def see(step: Step) -> None:
        for place, name in enumerate(step.input_names):
            if name in names and not step.constant:
                found.setdefault(name, {}).setdefault((step.operator, place), []).append(step.name)

    tell_steps(graph, see)
    return found


_REMAINDERS = frozenset({"fmod", "remainder", "mod", "floor_divide"})


def divisors_read_in(formats: Sequence[torch.dtype], side: ReconciledSide, repairs: Sequence[Repair]) -> list[Repair]:
    """Give the divisors of remainders as a program natively reads them: rounded to its narrowest format, or as stored.

    The remainder of 1e18 by 0.7 depends on digits of 0.7 that no format holds. Two programs that divide by the same
    rounded number are one function, whatever number was meant.
    """
    narrowest = max(formats, key=lambda fmt: torch.finfo(fmt).eps)
    divisors = [c for c in side.constants if plain_name(c.where.operator or "") in _REMAINDERS]
    names = {r.name for r in repairs if r.kind == "scalar"}
    found = []
    for c in divisors:
        literal = c.origin is Origin.LITERAL and c.value.is_floating_point() and not c.value.dim()
        if not literal and c.name not in names:
            continue
        value = (c.value.to(narrowest) if literal else c.value).to(torch.float64)
        if bool(torch.isfinite(value).all()) and bool(value.all()):
            found.append(Repair(c.name, value, "scalar", f"{float(c.value.reshape(-1)[0]):g}, as it is read", c))
    return found


# Significant digits from which somebody wrote all of a number that float32 holds, and all that float64 does.
_WHOLE, _ALL = 7, 15


def written_numbers(graph: Lifted) -> list[tuple[Constant, torch.dtype]]:
    """Numbers that a program was written with, and the coarsest format of what the step that reads each gives."""
    formats: dict[str, Sequence[torch.dtype]] = {}

    def look(step: Step) -> None:
        formats[step.name] = [f for f in step.formats if f is not None and f.is_floating_point]

    literals = [c for c in graph.constants() if c.origin is Origin.LITERAL and c.frontier and not c.value.dim()]
    if literals:
        tell_steps(graph, look)
    read = ((c, formats.get(c.name.rpartition(".")[0], ())) for c in literals if c.value.is_floating_point())
    return [(c, max(own, key=lambda fmt: torch.finfo(fmt).eps)) for c, own in read if own]


def written_short(side: ReconciledSide, others: Sequence[Constant]) -> list[Repair]:
    """Give numbers that were written with fewer digits the other program's, where no kernel reads the digits left out.

    0.70710678 and the root of a half are one number to float32, and to whoever wrote the one for the other.
    """
    found, pool = [], None
    for c, fmt in written_numbers(side.graph):
        number = float(c.value)
        reach = _last_digit(number)
        if fmt is torch.float64 or not reach:
            continue
        pool = numbers(others) if pool is None else pool
        near_by = [n for n in pool if abs(n.value - number) < reach and _single(n.value) == _single(number)]
        close = [n for n in near_by if n.value == number or len(_digits(n.value)) > len(_digits(number))]
        if close and close[0].value != number:
            value = torch.full(c.value.shape, close[0].value, dtype=torch.float64)
            found.append(Repair(c.name, value, "scalar", close[0].words, c))
    return found


def _single(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float32))


def _digits(number: float) -> str:
    """The significant digits with which a number is written."""
    return f"{abs(number)!r}".partition("e")[0].replace(".", "").lstrip("0")


def _last_digit(number: float) -> float:
    """What the last digit of a number is worth; 0.0 of one with all of float64's digits, or not all of float32's."""
    if not math.isfinite(number) or not _WHOLE <= len(_digits(number)) < _ALL:
        return 0.0
    mantissa, _, exponent = f"{number!r}".partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


# Significant digits of the decimals that a person writes (a mean of pixels, 0.485), by the format that tells them from
# other numbers, and elements of a tensor of them.
_DIGITS, _WRITTEN = {torch.float32: 6, torch.float16: 4}, 64
#: What a repair by :func:`decimals` says: the other program need not hold these numbers.
DECIMALS = "its own numbers in decimals"


def decimals(side: ReconciledSide, repairs: Sequence[Repair]) -> list[Repair]:
    """Give stored numbers that are short decimals in their format the decimals: a person wrote these, or a sixth.

    One number in a hundred is such a decimal by chance. The caller certifies the proposal by the whole program.
    """
    meant = {c.name: as_decimals(c.value) for c in side.constants if c.origin is Origin.WEIGHT}
    words = dict.fromkeys(meant, DECIMALS)
    for constant in side.constants:
        if (named := nobodys(constant)) is not None:
            meant[constant.name] = torch.full(constant.value.shape, named.value, dtype=torch.float64)
            words[constant.name] = named.words
    found = {c.name: (c, v) for c in side.constants if (v := meant.get(c.name)) is not None}
    tables = ConstantTables.of(side, repairs)
    return [
        *(Repair(c.name, v, "solved", words[c.name], c) for c, v in found.values() if c.frontier),
        *tables.repairs({c.name: v for c, v in found.values() if not c.frontier}),
    ]


def as_decimals(stored: torch.Tensor) -> torch.Tensor | None:
    """The shortest decimals of a few numbers; None where one of them is long, or all are what is stored."""
    most = _DIGITS.get(stored.dtype)
    if most is None or not 0 < stored.numel() <= _WRITTEN:
        return None
    words = [str(number) for number in stored.reshape(-1).numpy()]  # of a numpy scalar the shortest
    digits = [word.partition("e")[0].replace(".", "").lstrip("-0").rstrip("0") for word in words]
    value = torch.tensor([float(word) for word in words], dtype=torch.float64).reshape(stored.shape)
    short = all(len(d) <= most for d in digits) and bool(torch.isfinite(stored).all())
    return value if short and not torch.equal(value, stored.to(torch.float64)) else None


def without_thresholds(side: ReconciledSide) -> list[Repair]:
    """Move the thresholds of softplus to infinity, where no format of the outputs shows what they leave out."""
    return [
        Repair(
            constant.name, torch.full(constant.value.shape, math.inf, dtype=torch.float64), "shortcut",
            f"{float(constant.value):g}, from where on float32 cannot tell softplus from its argument", constant,
        )
        for constant in side.constants
        if side.single and constant.name.endswith(".threshold") and "softplus" in (constant.where.operator or "")
        and _unseen(constant)
    ]  # fmt: skip


def _unseen(constant: Constant) -> bool:
    """Whether softplus is its argument from here on, to half an ulp."""
    threshold = float(constant.value)
    return threshold > 0 and math.log1p(math.exp(-threshold)) < _UNSEEN * threshold
