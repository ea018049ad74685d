"""The plugin as its users meet it: options, fixture, JUnit, pages, SARIF, GitHub, and under xdist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

from driftscope.report.pages import page

TESTS = """
import copy
import pytest
import torch
import driftscope as ds

def net(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)).eval().to(dtype)

def broken(model):
    other = copy.deepcopy(model)
    other[1].eps = 1e-3
    return other

def test_same(driftscope):
    model = net(driftscope.torch_dtype)
    driftscope.assert_same(model, copy.deepcopy(model), driftscope.inputs({"input": "4x16"}))

@pytest.mark.driftscope(dtype="float32")
def test_broken(driftscope):
    model = net()
    driftscope.assert_same(model, broken(model), driftscope.inputs({"input": "4x16"}))

@pytest.mark.driftscope(dtype="float32")
def test_expected(driftscope):
    model = net()
    assert str(driftscope.compare(model, broken(model), driftscope.inputs({"input": "4x16"})).verdict) == "DIFFERENT"

def test_the_front_door():
    model = net()
    ds.testing.assert_same(model, copy.deepcopy(model), {"input": torch.ones(2, 16)})

def test_the_inputs(driftscope):
    leaves = driftscope.inputs({"x": "2x3", "y": "2:int64"}).kwargs
    assert leaves["x"].dtype is driftscope.torch_dtype
    assert leaves["y"].dtype is torch.int64

@pytest.mark.driftscope(dtype="bfloat16", seed=7)
def test_marked(driftscope):
    assert (driftscope.dtype, driftscope.seed) == ("bfloat16", 7)

def test_the_generator_is_seeded(driftscope):
    drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(driftscope.seed)))

def test_the_generator_is_put_back():
    assert torch.initial_seed() != 3
"""


@dataclass(frozen=True)
class Ran:
    """One run of pytest on the tests above."""

    folder: Path
    code: int
    lines: list[str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run the tests above in two processes, with every option, as on GitHub Actions."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "test_nets.py").write_text(TESTS)
    environment = os.environ | {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--junitxml=j.xml",
        "--driftscope-report=out", "--driftscope-dtype=float32,float16", "--driftscope-seed=3",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return Ran(folder, done.returncode, done.stdout.splitlines())


def test_only_the_broken_one_fails_and_each_runs_for_its_dtypes(ran: Ran) -> None:
    assert ran.lines[-1].startswith("1 failed, 10 passed"), "\n".join(ran.lines)


def test_the_summary_counts_verdicts_and_names_what_failed(ran: Ran) -> None:
    assert "2 DIFFERENT, 3 IDENTICAL" in ran.lines
    assert [line.split(":", 3)[:3] for line in ran.lines if line.startswith("DIFFERENT test_nets")] == [
        ["DIFFERENT test_nets.py", "", "test_broken"]
    ]


def test_a_failure_names_the_size_the_module_and_the_edit(ran: Ran) -> None:
    text = "\n".join(ran.lines)
    assert "AssertionError: DIFFERENT: " in text
    for said in ("In float64 the outputs still differ by", "norm", "N001", "eps"):
        assert said in text


def test_verdicts_are_properties_of_their_tests(ran: Ran) -> None:
    told = {
        case.get("name", ""): {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        for case in ElementTree.parse(ran.folder / "j.xml").getroot().iter("testcase")
    }
    assert told["test_same[float16]"]["driftscope.verdict"] == "IDENTICAL"
    assert told["test_broken"]["driftscope.verdict"] == "DIFFERENT"
    assert told["test_the_front_door"]["driftscope.verdict"] == "IDENTICAL"
    assert told["test_marked"] == {}


def test_the_report_has_an_index_with_a_page_for_each_comparison(ran: Ran) -> None:
    session = page.load(ran.folder / "out" / "index.html")
    assert len(session.entries) == 5
    for entry in session.entries:
        assert page.load(ran.folder / "out" / entry.page).verdict is entry.verdict
        assert f'href="{entry.page}"' in (ran.folder / "out" / "index.html").read_text()
    assert json.loads((ran.folder / "out" / "findings.sarif").read_text())["version"] == "2.1.0"


def test_github_is_told_of_the_failure_alone(ran: Ran) -> None:
    commands = [line for line in ran.lines if line.startswith("::error")]
    assert len(commands) == 1
    assert "title=driftscope N001" in commands[0]
    assert "test\\_expected" in (ran.folder / "summary.md").read_text()


def test_a_test_that_goes_elsewhere_takes_no_page_along(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import os
import torch

def test_elsewhere(driftscope, tmp_path):
    os.chdir(tmp_path)
    driftscope.compare(torch.abs, torch.abs, torch.ones(2))
    """)
    before = os.getcwd()
    result = pytester.runpytest_inprocess("--driftscope-report=out")
    os.chdir(before)
    assert result.ret == 0, result.outlines
    assert len(list((pytester.path / "out").glob("test-a-test*.html"))) == 1
    assert (pytester.path / "out" / "index.html").exists()


def test_nothing_is_said_where_nothing_was_compared(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_other(): pass")
    result = pytester.runpytest_inprocess("--driftscope-report=out")
    assert not [line for line in result.outlines if line.startswith("=") and "driftscope" in line]
    assert not (pytester.path / "out" / "index.html").exists()


@pytest.mark.parametrize(
    ("option", "said"),
    [("--driftscope-dtype=float31", "'float31' is not one of"), ("--driftscope-report=taken/x", "cannot write to"),
     ("--driftscope-seed=one", "invalid int value"), ("--driftscope-dtype=", "no dtype is given"),
     ("--driftscope-report=", "no folder is given")],
)  # fmt: skip
def test_an_option_that_cannot_be_used_is_refused(pytester: pytest.Pytester, option: str, said: str) -> None:
    (pytester.path / "taken").write_text("a file")
    pytester.makepyfile("def test_other(): pass")
    result = pytester.runpytest_inprocess(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in "\n".join(result.errlines + result.outlines)


MARKED = """
import pytest

pytestmark = pytest.mark.driftscope(dtype="float16")

def test_of_the_module(driftscope):
    assert (driftscope.dtype, driftscope.seed) == ("float16", 0)

@pytest.mark.driftscope(seed=3)
def test_of_both(driftscope):
    assert (driftscope.dtype, driftscope.seed) == ("float16", 3)

@pytest.mark.driftscope(dtype="int64")
def test_the_closest_counts(driftscope):
    assert driftscope.dtype == "int64"

@pytest.mark.driftscope({mark})
def test_{name}(driftscope):
    pass
"""


@pytest.mark.parametrize("option", ["--driftscope-dtype=float32", "--driftscope-dtype=float32,bfloat16"])
@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("'float16'", "takes dtype=... and seed=..., not 'float16'"),
        ("dtyp='float16'", "takes dtype=... and seed=..., not 'dtyp'"),
        ("dtype='float23'", "dtype='float23' is not the name of a dtype of torch"),
        ("dtype='Tensor'", "dtype='Tensor' is not the name of a dtype of torch"),
        ("dtype=['float16']", "dtype=['float16'] is not the name of a dtype of torch"),
        ("seed='a'", "seed='a' is not a whole number"),
    ],
)
def test_a_mark_that_says_nothing_known_fails_its_test(
    pytester: pytest.Pytester, option: str, mark: str, said: str
) -> None:
    pytester.makepyfile(MARKED.format(mark=mark, name="that_is_wrong"))
    result = pytester.runpytest_inprocess(option, "-p", "no:cacheprovider")
    lines = "\n".join(result.outlines)
    assert said in lines
    assert "Traceback" not in lines
    assert result.ret != 0


def test_marks_of_a_module_and_of_a_test_are_put_together(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MARKED.format(mark="seed=1", name="that_is_right"))
    pytester.runpytest_inprocess("--driftscope-dtype=float32,float32").assert_outcomes(passed=4)


def test_loading_the_plugin_loads_no_tensor_library() -> None:
    code = "import sys, driftscope.pytest_plugin; print([m for m in ('torch', 'numpy', 'onnx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


BESIDE = """
import pytest
import torch

def net(k=1.0):
    return lambda x: x * k

@pytest.fixture
def checked(driftscope):
    driftscope.assert_same(net(), net(1.5), torch.randn(4, 8))

@pytest.fixture
def compared(driftscope):
    yield
    driftscope.compare(net(), net(1.5), torch.randn(4, 8))

def test_setup(checked):
    pass

def test_teardown(compared):
    pass

def test_expects(driftscope):
    with pytest.raises(AssertionError):
        driftscope.assert_same(net(), net(1.5), torch.randn(4, 8))

@pytest.mark.xfail(strict=True)
def test_xfails(driftscope):
    driftscope.assert_same(net(), net(1.5), torch.randn(4, 8))
"""


def test_fixtures_are_listened_to_and_what_is_expected_has_not_failed(tmp_path: Path) -> None:
    (tmp_path / "test_beside.py").write_text(BESIDE)
    command = [sys.executable, "-m", "pytest", "-q", "--driftscope-report=told", "test_beside.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"GITHUB_ACTIONS": "true"}
    )
    assert "2 passed, 1 xfailed, 1 error" in done.stdout, done.stdout
    told = json.loads((tmp_path / "told" / "index.json").read_text())["entries"]
    assert {entry["test"].partition("::")[2]: entry["failed"] for entry in told} == {
        "test_setup": True, "test_teardown": False, "test_expects": False, "test_xfails": False,
    }  # fmt: skip
    assert done.stdout.count("::error") == 1
