"""The environment: the same each time, nothing loaded to describe it, nothing personal in it."""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.records import environment

CPUINFO = """processor\t: 0
model name\t: A Processor @ 2.00GHz
flags\t\t: fpu sse4_1 avx2 fma smep avx512f avx512_bf16 amx_tile f16c

processor\t: 1
model name\t: Another
"""


def test_two_captures_are_equal_and_plain() -> None:
    one, two = environment.capture(), environment.capture()
    assert json.dumps(one) == json.dumps(two)
    assert list(one)[:5] == ["python", "system", "processor", "versions", "variables"]


def test_nothing_is_loaded_to_be_described() -> None:
    code = (
        "import sys\nfrom driftscope.records.environment import capture\nfound = capture()\n"
        "assert found['versions']['torch'], found\nassert 'torch' not in found\n"
        "sys.exit('loaded' if {'torch', 'numpy', 'onnxruntime', 'threadpoolctl'} & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_loaded_is_described() -> None:
    import onnxruntime
    import torch

    found = environment.capture()
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert "CPUExecutionProvider" in found["onnxruntime"]["providers"]
    assert found["onnxruntime"]["build"] == onnxruntime.get_build_info()
    assert {pool["user_api"] for pool in found["blas"]} & {"blas", "openmp"}


def test_versions_are_those_that_packages_state() -> None:
    stated = {}
    for name in environment._PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            stated[name] = importlib.metadata.version(name)
    assert stated["driftscope"]
    assert environment._versions() == stated


def test_versions_are_read_from_folders_of_every_installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (
        first / "ML_dtypes-1.2.dist-info", first / "torch-2.13.0+cpu.dist-info", first / "numpy-2.4.6-py3.11.egg-info",
        first / "onnx.dist-info", first / "torch_more-9.dist-info", second / "torch-1.0.dist-info",
    ):  # fmt: skip
        folder.mkdir(parents=True)
    archive = tmp_path / "packages.zip"
    archive.write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(archive), str(tmp_path / "missing"), str(first), str(second)])
    environment._versions.cache_clear()
    try:
        assert environment._versions() == {"torch": "2.13.0+cpu", "numpy": "2.4.6", "ml-dtypes": "1.2"}
    finally:
        environment._versions.cache_clear()


def test_variables_that_change_results_are_kept_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    variables = environment.capture()["variables"]
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["MKL_CBWR"] == "COMPATIBLE"
    assert "SECRET_TOKEN" not in variables
    assert list(variables) == sorted(variables)


def test_no_names_of_people_or_machines() -> None:
    text = json.dumps(environment.capture()["system"])
    assert platform.node() not in text or not platform.node()
    assert getpass.getuser() not in text


def test_a_processor_is_read_from_cpuinfo(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    found = environment._processor(tmp_path / "cpuinfo")
    assert found["model"] == "A Processor @ 2.00GHz"
    assert found["flags"] == ["amx_tile", "avx2", "avx512_bf16", "avx512f", "f16c", "fma", "sse4_1"]


def test_without_cpuinfo_there_is_still_a_processor(tmp_path: Path) -> None:
    found = environment._processor(tmp_path / "nothing")
    assert found["model"]
    assert found["cores"] >= 1
    assert "flags" not in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 2025\nGCC version: 12.2.0",
            "570.124.06",
        ),
        ("nothing of the kind", ""),
    ],
)
def test_a_driver_is_read_from_its_own_file(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(text)
    assert environment._nvidia_driver(tmp_path / "version") == expected
    assert environment._nvidia_driver(tmp_path / "missing") == ""


@pytest.mark.slow
def test_a_precision_set_for_one_backend_is_written_down() -> None:
    import torch

    if not hasattr(torch.backends.mkldnn, "matmul"):
        pytest.skip("this torch has no precision per backend")
    # In a process of its own: torch cannot be told to forget the setting.
    code = (
        "import torch; from driftscope.records.environment import capture\n"
        "print(capture()['torch']['float32_matmul_precision'])\n"
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'\n"
        "print(capture()['torch']['float32_matmul_precision'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["highest", "cuda none, mkldnn bf16"]


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"torch": "2.13.0+cpu", "numpy": "1.26.4"}, []),
        ({"torch": "99.1.0"}, ["torch 99.1.0 is newer than any version driftscope was tried with (2.15)"]),
        ({"torch": "a source build"}, []),
        ({}, []),
    ],
)
def test_a_newer_library_than_any_that_was_tried_is_named_and_not_refused(versions, said) -> None:
    assert environment.untried(versions) == said


def test_the_newest_tried_are_the_newest_that_were_measured() -> None:
    root = Path(__file__).parents[2]
    files = sorted((root / "docs" / "measurements" / "compatibility").glob("*.json"))
    rows = [json.loads(path.read_text(encoding="utf-8"))["versions"] for path in files]
    minors = {name: [re.findall(r"\d+", row[name])[:2] for row in rows] for name in environment._NEWEST_TRIED}
    newest = {name: max((int(major), int(minor)) for major, minor in found) for name, found in minors.items()}
    assert newest == environment._NEWEST_TRIED
    readme = (root / "README.md").read_text(encoding="utf-8")
    for name in ("torch", "onnxruntime"):
        assert re.search(rf"\b{name} [\d.]+ to {newest[name][0]}\.{newest[name][1]}\b", readme), name
