"""Which number of one program a stored scalar of the other is, up to the rounding of its storage format.

Candidates are the numbers the other program writes, those derived from them, and those kernels write by themselves.
A float16 converter also clamps: what is documented of it is tried like a rounding.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from driftscope.lift.reconcile.matching import HALF_ULP, LAST_BITS, Repair, clamped, is_clamp, same_name, ulp, uniform
from driftscope.lift.steps import Constant, Origin

# Numbers that exporters and kernels write without the user having written them.
_UNIVERSAL = {
    "sqrt(2)": math.sqrt(2.0), "1/sqrt(2)": math.sqrt(0.5), "sqrt(2/pi)": math.sqrt(2.0 / math.pi),
    "2/sqrt(pi)": 2.0 / math.sqrt(math.pi), "0.044715": 0.044715, "1.702": 1.702, "pi": math.pi, "1/pi": 1 / math.pi,
    "2*pi": 2 * math.pi, "ln(2)": math.log(2.0), "1/ln(2)": 1 / math.log(2.0), "ln(10)": math.log(10.0),
    "1/ln(10)": 1 / math.log(10.0), "e": math.e, "1/6": 1 / 6, "1/3": 1 / 3, "2/3": 2 / 3,
    "selu alpha": 1.6732632423543772, "selu gamma": 1.0507009873554805,
    "2/pi": 2 / math.pi, "pi/2": math.pi / 2, "sqrt(3)": math.sqrt(3.0), "0.01": 0.01,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeantNumber:
    """A number that a program's author meant, exactly, and in words where it comes from."""

    value: float
    words: str
    derived: bool


def numbers(constants: Iterable[Constant]) -> list[MeantNumber]:
    """Return the exact numbers a program writes, then those derived from them.

    Derived are reciprocal, square, roots and negation (a division becomes a multiplication, a scale is split
    over query and key), half, double and complement (a loss that is quadratic near zero, an average), dimensions of
    weights with the same, and numbers kernels write by themselves.
    """
    direct: dict[float, str] = {}
    sizes: set[int] = set()
    for constant in constants:
        sizes.update(int(n) for n in constant.value.shape if n > 1)
        number = uniform(constant)
        if number is None:
            continue
        if number == int(number) and 1 < abs(number) < 1 << 24:
            sizes.add(int(abs(number)))
        if number not in direct or ("scale" in constant.name and "scale" not in direct[number]):
            direct[number] = f"{number!r} ({constant.name})"  # what is split over query and key is known by its name
    found = [MeantNumber(v, w, False) for v, w in direct.items()]
    derived: dict[float, str] = {v: w for w, v in _UNIVERSAL.items()}
    for value in [*direct, *map(float, sizes)]:
        for v, w in _derive(value):
            if v not in direct:
                derived.setdefault(v, w)
    return found + [MeantNumber(v, w, True) for v, w in derived.items()]


def _derive(value: float) -> Iterator[tuple[float, str]]:
    yield -value, f"-({value!r})"
    yield value * value, f"{value!r}**2"
    yield value / 2.0, f"{value!r}/2"
    yield value * 2.0, f"2*{value!r}"
    yield 1.0 - value, f"1 - {value!r}"
    if value == 0.0:
        return
    yield 1.0 / value, f"1/{value!r}"
    yield -1.0 / value, f"-1/{value!r}"
    if value > 0.0:
        yield math.sqrt(value), f"sqrt({value!r})"
        yield 1.0 / math.sqrt(value), f"1/sqrt({value!r})"
        yield value**-0.25, f"{value!r}**-0.25"
        yield value**0.25, f"{value!r}**0.25"


def is_nobodys(words: str) -> bool:
    """Whether a number is one that kernels and exporters write by themselves, and so no side's own."""
    return words in _UNIVERSAL


def nobodys(constant: Constant) -> MeantNumber | None:
    """The number that kernels and exporters write by themselves of which a stored one is the rounding."""
    number, fmt = uniform(constant), constant.value.dtype
    if number is None or not 0.0 < number < math.inf or fmt not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    reach = HALF_ULP * float(ulp(torch.tensor(number, dtype=torch.float64), fmt))
    close = (MeantNumber(v, words, True) for words, v in _UNIVERSAL.items() if abs(v - number) <= reach)
    return next((meant for meant in close if meant.value != number), None)


class Candidates:
    """The numbers of another program that constants may be; each number of each format is looked up once.

    Parameters
    ----------
    constants : sequence of Constant
        Of the other program.
    single : bool
        As for :func:`scalar_candidates`.
    """

    def __init__(self, constants: Sequence[Constant], single: bool):
        self._pool, self._single = numbers(constants), single
        self._named = [(c.name, uniform(c)) for c in constants if c.origin is Origin.WEIGHT and c.value.numel() == 1]
        self._written = [n for n in self._pool if not n.derived]
        self._known: dict[tuple[float | None, torch.dtype, bool], list[MeantNumber]] = {}
        self._takers: dict[float, str] = {}
        self._sizes = sorted(abs(n.value) for n in self._written)

    def hold(self, number: float) -> bool:
        """Whether the other program writes this very number."""
        return any(n.value == number for n in self._written)

    def may_be_written(self, number: float, fmt: torch.dtype) -> bool:
        """Whether a number may be, with either sign, one that the other program writes, rounded: quickly told."""
        info = torch.finfo(torch.float32 if fmt == torch.float64 else fmt)
        reach = info.eps * max(abs(number), info.smallest_normal)
        at = bisect.bisect_left(self._sizes, abs(number) - reach)
        near = at < len(self._sizes) and self._sizes[at] <= abs(number) + reach
        return near or is_clamp(number, fmt)

    def of(self, constant: Constant, derived: bool = True) -> list[MeantNumber]:
        """Return what :func:`scalar_candidates` does; of several, the one of the constant's name first."""
        key = uniform(constant), constant.value.dtype, derived
        if key not in self._known:
            pool = self._pool if derived else self._written
            self._known[key] = scalar_candidates(constant, pool, self._single, derived)
        found = self._known[key]
        if len(found) < 2 or found[0].derived:
            return found
        # Rounded, two numbers may be one: then names tell them apart, or the order in which they stand.
        named = {value for name, value in self._named if same_name(name, constant.name)}
        learnt = {value for _, value in self._named} if constant.origin is Origin.WEIGHT else set()
        taken = {v for v, taker in self._takers.items() if v in learnt and taker != constant.name}
        found = sorted(found, key=lambda n: (n.derived, n.value not in named, n.value in taken))
        self._takers.setdefault(found[0].value, constant.name)
        return found


def scalar_candidates(
    constant: Constant, pool: Sequence[MeantNumber], single: bool = False, derived: bool = True
) -> list[MeantNumber]:
    """Return the numbers whose rounding to the constant's own format is the constant; [] when it is exact.

    A number written by the other program wins over derived ones. A constant that the other program holds with
    the same value needs no repair. In a program that computes in ``single`` precision at most, a literal that float32
    holds was rounded on its way through a kernel (torch's rms_norm does so to its epsilon). Without ``derived``,
    numbers that are computed from others are not looked for.
    """
    number = uniform(constant)
    fmt = constant.value.dtype
    if number is None or number == 0.0:
        return []
    if fmt == torch.float64:
        if not single or significant_bits(number) > SINGLE or significant_bits(number) <= SIMPLE_BITS:
            return []
        pool, fmt = [n for n in pool if not n.derived and significant_bits(n.value) > SINGLE], torch.float32
    spacing = float(ulp(torch.tensor(number, dtype=torch.float64), fmt))
    close = [n for n in pool if n.value != 0.0 and abs(n.value - number) <= HALF_ULP * spacing]
    if is_clamp(number, fmt):
        close += [n for n in pool if not n.derived and n not in close and clamped(n.value, number, fmt)]
    if any(n.value == number and not n.derived for n in close):
        return []
    direct = [n for n in close if not n.derived]
    if significant_bits(number) <= SIMPLE_BITS:
        return direct
    if constant.value.dtype == torch.float64 or not derived:
        return direct
    return direct or _distinct(n for n in close if n.value != number) or _distinct(_replayed(number, fmt, pool))


def near(constant: Constant, pool: Sequence[MeantNumber]) -> list[MeantNumber]:
    """Return every number whose rounding to a stored constant's format it is, its own first where there are others."""
    number, fmt = uniform(constant), constant.value.dtype
    if number is None or number == 0.0 or fmt == torch.float64 or constant.origin is not Origin.WEIGHT:
        return []
    reach = HALF_ULP * float(ulp(torch.tensor(number, dtype=torch.float64), fmt))
    others = [n for n in pool if n.value != number and n.value != 0.0 and abs(n.value - number) <= reach]
    return [MeantNumber(number, f"{number!r}", False), *_distinct(others)] if others else []


# A number of this many significant bits or fewer (0.5, 3, 0.125) was meant as it stands.
SIMPLE_BITS = 5
# Significant bits of float32.
SINGLE = 24


def significant_bits(number: float) -> int:
    """Bits from the first to the last one that is set in a float's significand; 0 of what has none."""
    if not math.isfinite(number):
        return 0
    mantissa = int(math.frexp(abs(number))[0] * 2**53)
    return 53 - ((mantissa & -mantissa).bit_length() - 1) if mantissa else 0


def _distinct(found: Iterable[MeantNumber]) -> list[MeantNumber]:
    """Drop numbers that another way of writing them gave already, but for the last bits of float64."""
    kept: list[MeantNumber] = []
    for number in found:
        if not any(math.isclose(number.value, k.value, rel_tol=LAST_BITS) for k in kept):
            kept.append(number)
    return kept


def _replayed(number: float, fmt: torch.dtype, pool: Sequence[MeantNumber]) -> list[MeantNumber]:
    """Return quotients, products and roots of numbers that give the very bits when computed natively from rounded ones.

    An optimiser that turns a division into a multiplication, two scales into one, or one into two, starts from what is
    stored: its result is off by more than half an ulp, and is exactly this.
    """
    written = {n.value: n.words for n in pool if not n.derived and n.value not in (0.0, 1.0, -1.0)}
    words = list(written.values())
    exact = torch.tensor(list(written), dtype=torch.float64)

    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values.to(fmt).to(torch.float64)

    short = rounded(exact)
    squares, roots = rounded(rounded(exact.sqrt()).square()), rounded(short.sqrt())
    split = rounded(rounded(exact.square()).sqrt())  # a program may write the root alone of what the other took it of
    quotients = _places((short != 0.0) & (rounded(1.0 / short) == number))
    found = [MeantNumber(float(1.0 / exact[k]), f"1/({words[k]}), computed natively", True) for k in quotients]
    found += [  # a scale that was split over query and key, put together again
        MeantNumber(float(exact[k]), f"({words[k]}), the square of its root computed natively", True)
        for k in _places(squares == number) if "scale" in words[k]
    ]  # fmt: skip
    found += [  # with a factor of the query, or the key
        MeantNumber(float(exact[i] * exact[k]), f"({words[i]}) * ({words[k]}), computed natively by its root", True)
        for k in (k for k, w in enumerate(words) if "scale" in w and exact[k] > 0.0)
        for root in {float(rounded(exact[k].sqrt())), float(roots[k])}
        for i in _places((rounded(rounded(short * root) * root) == number) | (rounded(short * squares[k]) == number))
    ]
    found += [
        MeantNumber(math.sqrt(float(exact[k])), f"sqrt({words[k]}), computed natively", True)
        for k in _places(roots == number)
    ]
    found += [
        MeantNumber(float(exact[k]), f"({words[k]}), the root of its square computed natively", True)
        for k in _places(split == number) if _is_root_of_scale(float(exact[k]))
    ]  # fmt: skip
    products = exact[:, None] * exact
    made = rounded(short[:, None] * short) == number
    found += [
        MeantNumber(float(products[i, j]), f"({words[i]}) * ({words[j]}), computed natively", True)
        for i, j in (made & (products != number)).triu().nonzero()
    ]
    return found or _folded(number, fmt, words, exact)


def _folded(number: float, fmt: torch.dtype, words: Sequence[str], exact: torch.Tensor) -> list[MeantNumber]:
    """Return what is made of two numbers exactly and rounded once: ``(x / 255 - m) / s`` as ``a x - b``."""
    reach = HALF_ULP * float(ulp(torch.tensor(number, dtype=torch.float64), fmt))
    products, quotients = exact[:, None] * exact, exact[:, None] / exact
    ways = (
        (products, "({}) * ({})", True), (1.0 / products, "1 / (({}) * ({}))", True), (quotients, "({}) / ({})", False)
    )  # fmt: skip
    return [
        MeantNumber(sign * float(made[i, j]), ("" if sign > 0 else "-") + form.format(words[i], words[j]), True)
        for made, form, alike in ways
        for sign in (1.0, -1.0)
        for i, j in (((sign * made - number).abs() <= reach) & (made != sign * number)).nonzero().tolist()
        if i != j and (i < j or not alike)
    ]


def _places(marks: torch.Tensor) -> list[int]:
    return [int(place) for (place,) in marks.nonzero()]


#: Widths of query and key that a model may have.
_WIDEST = 1024


def _is_root_of_scale(number: float) -> bool:
    """Whether a number is what query and key of some whole width are multiplied by: its fourth root, inverted."""
    width = number**-4.0 if 0.1 < number < 0.9 else 0.0
    return 1.5 < width <= _WIDEST and math.isclose(width, round(width), rel_tol=LAST_BITS * 8)


def factors_of(constants: Sequence[Constant], repairs: Sequence[Repair]) -> list[float]:
    """The numbers that a program may multiply a table by: those that it stores, as they are meant, and their roots."""
    meant = {r.name: float(r.value.reshape(-1)[0]) for r in repairs if r.kind == "scalar"}
    stored = {abs(meant.get(c.name, uniform(c) or 0.0)) for c in constants if c.value.dtype.is_floating_point}
    found = {m for n in stored if n > 0.0 for m in (n, 1.0 / n, math.sqrt(n), 1.0 / math.sqrt(n))}
    return sorted(found - {1.0})
