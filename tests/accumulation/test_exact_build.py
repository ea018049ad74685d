"""The native build: no contracted arithmetic, an installation that never fails, a fallback that says nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accumulation.exact_ways import need_compiled, only_integers
from driftscope.accumulation.exact import compiled
from driftscope.accumulation.exact.compiled import Instructions

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "src" / "driftscope" / "accumulation" / "native"


def functions_with_fma(disassembly: str) -> dict[str, int]:
    """Count the fused multiply-adds of each function of a disassembled library."""
    counts: dict[str, int] = {}
    name = ""
    for line in disassembly.splitlines():
        if header := re.match(r"^[0-9a-f]+ <([^>]+)>:$", line):
            name = header[1].split(".")[0]
        # x86: vfmadd231ps and its family; Arm: fmla, fmadd, fnmsub, ...
        elif re.search(r"\b(vfn?m(add|sub)\w*|fml[as]|fn?m(add|sub))\b", line):
            counts[name] = counts.get(name, 0) + 1
    return counts


#: Functions in which they are written: chains of a fixed order, and sums that are products with one.
FUSED = ("fused_", "unrounded_", "window_", "block_float16_")


def test_there_are_fused_multiply_adds_only_where_they_are_written():
    need_compiled()
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    library = compiled.library_file()
    assert library is not None
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True)
    found = functions_with_fma(listing.stdout)
    assert any("fused_" in name for name in found), "the search itself finds nothing"
    # On Arm the compiler writes the replay's fma() as an instruction; on x86-64 it calls the function.
    assert [name for name in found if not name.startswith(FUSED) and name != "driftscope_replay"] == []


@pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("objdump") is None, reason="needs gcc and objdump")
@pytest.mark.slow
def test_the_flag_is_what_prevents_them(tmp_path):
    """The same sources, allowed to contract for a machine that can: the two-product then holds an fma."""
    target = tmp_path / "contracted.so"
    flags = ["-O2", "-ffp-contract=fast", "-march=x86-64-v3", "-shared", "-fPIC"]
    build = subprocess.run(["gcc", *flags, str(NATIVE / "exact.c"), "-o", str(target)], capture_output=True, text=True)
    if build.returncode:
        pytest.skip("not an x86-64 compiler")
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(target)], capture_output=True, text=True)
    assert any("two_products" in name for name in functions_with_fma(listing.stdout))


def test_the_flags_are_written_in_one_place():
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert '"-O2", "-ffp-contract=off", "-fno-fast-math"' in text
    assert "optional=True" in text


def test_without_the_library_everything_is_there(monkeypatch):
    with only_integers(monkeypatch):
        assert compiled.library() is None
        assert compiled.use(Instructions.AVX512) is Instructions.PLAIN


def test_a_library_of_another_machine_is_as_good_as_none(tmp_path, monkeypatch):
    broken = tmp_path / "_exact.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(compiled, "library_file", lambda: broken)
    compiled._opened.cache_clear()
    compiled.library.cache_clear()
    try:
        assert compiled.library() is None
    finally:
        monkeypatch.undo()
        compiled._opened.cache_clear()
        compiled.library.cache_clear()


def built(tmp_path: Path, compiler: str | None) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """Build the extension from a copy of what it is made of."""
    for folder in (NATIVE, ROOT / "src" / "driftscope" / "lift" / "noise" / "native"):
        shutil.copytree(folder, tmp_path / folder.relative_to(ROOT))
    shutil.copy(ROOT / "setup.py", tmp_path)
    environment = os.environ if compiler is None else {**os.environ, "CC": compiler}
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", "built", "--build-temp", "temporary"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    return run, sorted(path for name in ("_exact*", "_noise*") for path in (tmp_path / "built").rglob(name))


def test_a_build_without_a_compiler_succeeds_and_leaves_the_extension_out(tmp_path):
    run, files = built(tmp_path, "/bin/false")
    assert run.returncode == 0, run.stderr
    assert files == []


@pytest.mark.slow
def test_a_build_with_one_has_it(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("no compiler here")
    run, files = built(tmp_path, None)
    assert run.returncode == 0, run.stderr
    assert [path.name.split(".")[0] for path in files] == ["_exact", "_noise"]
