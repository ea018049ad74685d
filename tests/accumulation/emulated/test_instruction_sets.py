"""The native library gives the same bits under every instruction set: here, on 64-bit Arm, and with AVX-512.

``levels.c`` runs every entry point on hostile numbers and compares the instruction sets with one another and with a
plain reference. What it prints of the results does not depend on the machine, so machines are compared as well.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from accumulation.emulated import machine
from accumulation.exact_ways import need_compiled
from driftscope.accumulation.exact import compiled

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NATIVE = ROOT / "src" / "driftscope" / "accumulation" / "native"
ARM = ("aarch64-linux-gnu-gcc", "qemu-aarch64-static")


def flags() -> list[str]:
    """Return the flags of the build, which are written in one place."""
    call = next(node for node in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")))
                if isinstance(node, ast.keyword) and node.arg == "extra_compile_args")  # fmt: skip
    given: list[str] = ast.literal_eval(call.value)
    return given


def built(folder: Path, compiler: str = "gcc", native: Path = NATIVE) -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    sources = [
        *(str(native / f"{name}.c") for name in ("exact", "fixed_order", "layers", "replay")),
        str(HERE / "levels.c"),
    ]
    target = folder / "levels"
    subprocess.run([compiler, *flags(), "-static", *sources, "-o", str(target), "-lm"], check=True)
    return target


def told(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


def results(text: str) -> list[str]:
    return re.findall(r"^.*: \d+ cases, [0-9a-f]{16}$", text.replace("\r", ""), re.MULTILINE)


def test_every_instruction_set_of_this_processor_gives_the_same_bits(tmp_path):
    need_compiled()
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    library, target = str(compiled.library_file()), tmp_path / "levels"
    subprocess.run(["gcc", str(HERE / "levels.c"), library, "-o", str(target), "-lm"], check=True)
    text = told([str(target), "1"])
    assert text.startswith("instruction sets: plain")
    assert len(results(text)) == 18
    assert text.endswith("\n0 wrong\n"), text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "instead"),
    [
        ("tile.h", "sum[r][1] = FMA(factor, right, sum[r][1]);", "sum[r][1] = factor * right + sum[r][1];"),
        ("blocks.h", "top - bottom > 15 || top > 250", "top - bottom > 17 || top > 250"),
        ("elementary.h", "last[k] = i + k < n ? from[k] : -INFINITY;", "last[k] = from[k];"),
        ("replay.c", "if (unrounded[b])", "if (!unrounded[b])"),
    ],
)
def test_a_wrong_line_is_noticed(tmp_path, file, line, instead):
    shutil.copytree(NATIVE, tmp_path / "native")
    text = (tmp_path / "native" / file).read_text(encoding="utf-8")
    assert line in text
    (tmp_path / "native" / file).write_text(text.replace(line, instead), encoding="utf-8")
    assert not told([str(built(tmp_path, native=tmp_path / "native")), "8"]).endswith("\n0 wrong\n")


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ARM)), reason=f"needs {' and '.join(ARM)}")
def test_arm_gives_the_same_bits(tmp_path):
    (tmp_path / "arm").mkdir()
    here = told([str(built(tmp_path)), "1"])
    there = told([ARM[1], str(built(tmp_path / "arm", ARM[0])), "1"])
    assert there.startswith("instruction sets: plain\n")
    assert len(results(here)) == 18
    assert results(there) == results(here)


@pytest.mark.slow
@pytest.mark.skipif(machine.missing() is not None, reason=str(machine.missing()))
def test_avx512_gives_the_same_bits_as_everything_else(tmp_path):
    rounds = os.environ.get("DRIFTSCOPE_ROUNDS", "1")
    program = built(tmp_path)
    there = machine.run({"init": program}, [rounds], tmp_path)
    assert "instruction sets: plain avx2 avx512" in there, there
    assert "\n0 wrong" in there.replace("\r", ""), there
    assert results(there) == results(told([str(program), rounds]))
