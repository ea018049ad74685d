"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

import record_examples
from driftscope.errors import InputError
from driftscope.records import files


def test_a_failure_in_the_middle_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "record.json"
    target.write_text("before")

    def full(self: Path, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        record_examples.rounding().save(target)
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
    assert target.read_text() == "before"


def test_only_the_file_itself_is_left(tmp_path: Path) -> None:
    assert record_examples.rounding().save(tmp_path / "PAGE.HTML").read_text().startswith("<!doctype")
    assert [p.name for p in tmp_path.iterdir()] == ["PAGE.HTML"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("record.txt", "must end in"), ("record", "must end in"), ("missing/record.json", "create it first")],
)
def test_targets_that_cannot_be(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        record_examples.rounding().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        files.check_target(tmp_path / "folder.json")
