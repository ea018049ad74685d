"""Thousands of damaged and dangerous files of every kind: each is read or refused, and nothing else happens.

``make fuzz`` tries 10,000 of each kind; the slow suite fewer. A case is its number:
``KINDS[kind](folder).write(number, folder)``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hostile import fuzzed_kinds, watching

ASKED = int(os.environ.get("DRIFTSCOPE_FUZZ", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzzed_kinds.KINDS)
def test_whatever_is_handed_over_is_read_or_refused(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    kind = fuzzed_kinds.KINDS[name](tmp_path)
    if not (ASKED or kind.quick):
        pytest.skip("every case explores the shapes of a model: too long for this suite")
    tally = watching.watched(kind.act, kind.write, ASKED or kind.quick, tmp_path)
    print(f"\nfuzzed {name}: {dict(tally.outcomes)}, slowest {tally.slowest:.2f} s, grew {tally.largest >> 20} MiB")
    assert not tally.bad, "\n".join(f"case {number} {words}" for number, words in tally.bad[:20])
    assert tally.slowest < watching.SECONDS
    assert tally.largest < watching.BYTES
    assert min(tally.outcomes["read"], tally.outcomes["refused"]) > 0, "changes that are all the same prove nothing"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("raise KeyError('x')", "raises KeyError"),
        ("CANARY()", "executes code"),
        ("import os; os.kill(os.getpid(), 9)", "ends the process: -9"),
        ("open('/tmp/never-written-by-driftscope', 'w').close()", "writes /tmp/never"),
        ("import os; os.system('true')", "does os.system"),
        ("import this", "imports this"),
    ],
)
def test_the_watch_sees_what_it_is_for(tmp_path: Path, harm: str, words: str) -> None:
    def write(number: int, folder: Path) -> Path:
        path = folder / "harm.py"
        path.write_text(harm if number == 1 else "pass")
        return path

    tally = watching.watched(lambda path: exec(path.read_text()), write, 3, tmp_path)  # noqa: S102
    Path("/tmp/never-written-by-driftscope").unlink(missing_ok=True)
    assert [number for number, _ in tally.bad] == [1]
    assert words in tally.bad[0][1]
    assert tally.outcomes["read"] >= 2
