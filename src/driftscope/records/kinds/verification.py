"""What torch's ONNX verifier measured, kept as a record: largest differences by name, and what they do not say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.errors import InputError
from driftscope.records.showing import Record

VERIFICATION_SCHEMA = "driftscope/verification/1"


@dataclass(frozen=True, slots=True)
class VerifiedValue:
    """One value that torch's verifier compared: a ``VerificationInfo`` without its histograms."""

    name: str
    max_abs_diff: float
    max_rel_diff: float
    expected_dtype: str
    actual_dtype: str


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Record):
    """A list of ``torch.onnx.verification.VerificationInfo``, in the verifier's order."""

    values: tuple[VerifiedValue, ...]
    schema: str = VERIFICATION_SCHEMA

    @classmethod
    def from_torch(cls, infos: Iterable[Any]) -> Verification:
        """Take what ``torch.onnx.verification.verify_onnx_program`` returns.

        Parameters
        ----------
        infos : iterable of VerificationInfo, or of the dicts that their ``asdict()`` gives

        Raises
        ------
        InputError
            If something else is among them.
        """
        return cls(tuple(_value(info) for info in infos))

    @property
    def suspicious(self) -> tuple[VerifiedValue, ...]:
        """Values whose difference is NaN or infinite, or whose dtype changed: no tolerance makes these right."""
        return tuple(
            v
            for v in self.values
            if not math.isfinite(v.max_abs_diff) or v.expected_dtype.split(".")[-1] != v.actual_dtype.split(".")[-1]
        )


def _value(info: Any) -> VerifiedValue:
    fields = ("name", "max_abs_diff", "max_rel_diff", "expected_dtype", "actual_dtype")
    told: Mapping[str, Any] = (
        info if isinstance(info, Mapping) else {name: getattr(info, name, None) for name in fields}
    )
    missing = [name for name in fields if told.get(name) is None]
    if missing:
        raise InputError(f"this is not a VerificationInfo of torch.onnx.verification: it has no {missing[0]}")
    return VerifiedValue(
        str(told["name"]), float(told["max_abs_diff"]), float(told["max_rel_diff"]), str(told["expected_dtype"]),
        str(told["actual_dtype"]),
    )  # fmt: skip
