"""torch's verifier is read: what it measured is kept, what it cannot say is said, what it hid is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.onnx.verification import VerificationInfo

from driftscope.errors import InputError
from driftscope.records.kinds.verification import Verification
from driftscope.report import kinds
from driftscope.report.pages import page

ONES = torch.ones(3)


def infos(*pairs: tuple[torch.Tensor, torch.Tensor]) -> list[VerificationInfo]:
    return [VerificationInfo.from_tensors(f"v{i}", a, b) for i, (a, b) in enumerate(pairs)]


def test_it_comes_back_from_a_page_and_from_torchs_own_json(tmp_path: Path) -> None:
    made = infos((ONES, ONES + 1e-3), (ONES, ONES))
    record = Verification.from_torch(made)
    assert record.values[0].max_abs_diff == pytest.approx(1e-3, rel=1e-3)
    assert page.load(record.save(tmp_path / "v.html")) == record
    (tmp_path / "torch.json").write_text(json.dumps([info.asdict() for info in made]))
    assert page.load(tmp_path / "torch.json") == record


def test_numbers_alone_decide_nothing() -> None:
    assert kinds.sheet_of(Verification.from_torch(infos((ONES, ONES + 1e-3)))).headline == "INCONCLUSIVE"


@pytest.mark.parametrize("other", [ONES.half(), ONES * float("nan"), ONES * float("inf")])
def test_what_needs_no_tolerance_is_named(other: torch.Tensor) -> None:
    sheet = kinds.sheet_of(Verification.from_torch(infos((ONES, ONES), (ONES, other))))
    assert sheet.headline == "DIFFERENT"
    assert "v1" in sheet.reason


def test_something_else_is_refused() -> None:
    with pytest.raises(InputError, match="it has no name"):
        Verification.from_torch([3])
