"""A repair is an edit that was tried: its patch gives the loop's values and derivative, or it is withdrawn."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import textwrap

import pytest
import torch
from click.testing import CliRunner

import driftscope as ds
from driftscope.cli import main as driftscope
from driftscope.transforms.examination import subject_of
from driftscope.transforms.repairs.patches import applied_in, one_patch, patched_path
from driftscope.transforms.repairs.source import swapped
from driftscope.transforms.repairs.trial import PlainAnswers, Trial
from transforms.torch_abilities import WRITES_THROUGH_A_MASK

X = torch.tensor([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75], [-2.0, 1.0, -0.5], [3.0, -1.0, 0.125]], dtype=torch.float64)

HEAD = """
import math
import torch
import torch.nn.functional as F

"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a module, import it, and return it; its folder is the current one."""
    monkeypatch.chdir(tmp_path)

    def write(source, name="mine"):
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + textwrap.dedent(source))
        return imported(path)

    return write


def imported(path):
    # A patch within the same second that keeps the file's size would leave the old bytecode valid.
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(module, transforms=("vmap",), code=None):
    report = ds.check_transforms(module.f, X, transforms=transforms)
    return next(f for f in report.findings if not f.note and code in (None, f.code))


REPAIRED = {
    "zeros made per example": (
        """
        def f(v):
            out = torch.zeros(v.shape[0], v.shape[0], dtype=v.dtype)
            out.diagonal().copy_(v)
            return out
        """,
        "v.new_zeros(v.shape[0], v.shape[0])",
    ),
    "two buffers": (
        """
        def f(v):
            a = torch.zeros(3, dtype=torch.float64)
            b = torch.ones(3, dtype=torch.float64)
            a += v
            b *= v
            return a + b
        """,
        "v.new_zeros(3",
    ),
    "out of a local buffer": (
        """
        def f(v):
            o = torch.empty_like(v)
            torch.add(v, 1, out=o)
            return o * 2
        """,
        "o = torch.add(v, 1)",
    ),
    "item": ("def f(v):\n    return v * v.max().item()\n", "v.max().detach()"),
    "math": ("def f(v):\n    return v / math.sqrt(v.pow(2).sum())\n", "torch.sqrt(v.pow(2).sum().detach())"),
    "float": ("def f(v):\n    return v * float(v.abs().sum())\n", "v.abs().sum().detach()"),
    "tensor of a tensor": ("def f(v):\n    return torch.tensor(v) * v\n", "v.detach().clone()"),
    "if returns": (
        """
        def f(v):
            # which way
            if v.sum() > 0:
                return v * 2
            return v - 1
        """,
        "torch.where(v.sum() > 0, v * 2, v - 1)",
    ),
    "elif returns": (
        """
        def f(v):
            if v[0] > 1:
                return v * 2
            elif v[0] > 0:
                return v * 3
            else:
                return -v
        """,
        "torch.where(v[0] > 1, v * 2, torch.where(v[0] > 0, v * 3, -v))",
    ),
    "if assigns": (
        """
        def f(v):
            y = v.sin()
            if v[0] > 0 and v[1] < 0:
                y = y * 3
            return y
        """,
        "y = torch.where((v[0] > 0) & (v[1] < 0), y * 3, y)",
    ),
    "ternary": ("def f(v):\n    return v.exp() if v[0] > 0 else -v\n", "torch.where(v[0] > 0, v.exp(), -v)"),
    "larger of two": ("def f(v):\n    return max(v[0], v[1])\n", "torch.where(v[1] > v[0], v[1], v[0])"),
    "masked write": (
        """
        def f(v):
            v = v.clone()
            v[v < 0] = 0.0
            return v * v
        """,
        "v = torch.where(v < 0, 0.0, v)",
    ),
    "jacobian": (
        "def f(v):\n    return torch.autograd.functional.jacobian(lambda z: z ** 3, v)\n",
        "torch.func.jacrev(lambda z: z ** 3)(v)",
    ),
    "gradient by hand": (
        """
        def f(v):
            y = v.detach().clone().requires_grad_()
            z = y ** 2
            loss = (z * y).sum()
            g, = torch.autograd.grad(loss, y)
            return g * 2
        """,
        "g = torch.func.grad(objective)(y)",
    ),
    "backward by hand": (
        """
        def f(v):
            y = v.detach().clone().requires_grad_()
            (y ** 3).sum().backward()
            return y.grad
        """,
        "y_grad = torch.func.grad(objective)(y)",
    ),
    "running statistics": (
        """
        MEAN, VAR = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

        def f(v):
            return F.batch_norm(torch.stack([v, v * v]), MEAN, VAR, training=True)
        """,
        "F.batch_norm(torch.stack([v, v * v]), None, None, training=True)",
    ),
    "two items": (
        "def f(v):\n    return v * v.mean().item() + v.sum().item()\n",
        "v.mean().detach()",
    ),
    "two ifs": (
        """
        def f(v):
            out = v
            if v[0] > 0:
                out = out * 2
            if v[1] > 0:
                out = out + 1
            return out
        """,
        "out = torch.where(v[1] > 0, out + 1, out)",
    ),
    "smallest of three": (
        "def f(v):\n    return min(v[0], v[1], v[2])\n",
        "torch.where(v[1] < v[0], v[1], v[0])",
    ),
    "identity to write into": (
        """
        def f(v):
            out = torch.eye(3, dtype=torch.float64)
            out[0] = v
            return out
        """,
        "v.new_zeros(()) + torch.eye(3, dtype=torch.float64)",
    ),
    "masked update": (
        """
        def f(v):
            out = v.clone()
            out[out.abs() > 1] *= 0.5
            return out
        """,
        "out = torch.where(out.abs() > 1, out * 0.5, out)",
    ),
    "gradient of a leaf made in place": (
        """
        def f(v):
            y = v.detach().clone()
            y.requires_grad_()
            e = (y.sin() * v).sum()
            grad = torch.autograd.grad(e, [y])[0]
            return v - 0.1 * grad
        """,
        "torch.func.grad(objective)(y).detach()",
    ),
    "power of math": ("def f(v):\n    return v * math.pow(v.abs().sum(), 2)\n", "torch.pow(v.abs().sum().detach(), 2)"),
    "a lambda": ("f = lambda v: v * v.sum().item()\n", "v.sum().detach()"),
    "a function inside": (
        """
        def outer(scale):
            def inner(v):
                return v * scale * v.sum().item()
            return inner

        f = outer(2.0)
        """,
        "v.sum().detach()",
    ),
    "a function that is called": (
        """
        def norm(v):
            return math.sqrt((v * v).sum())

        def f(v):
            return v / norm(v)
        """,
        "torch.sqrt((v * v).sum().detach())",
    ),
    "a branch whose derivative is NaN where it is not taken": (
        """
        def f(v):
            if v[0] > 0:
                return v[0].sqrt()
            return v[0] * 0
        """,
        "torch.where(v[0] > 0, torch.where(v[0] > 0, v, torch.ones_like(v))[0].sqrt(), v[0] * 0)",
    ),
    "a branch that raises where it is not taken": (
        """
        def f(v):
            n = v[0].long()
            if n != 0:
                return 6 // n
            return n
        """,
        "torch.where(n != 0, 6 // torch.where(n != 0, n, torch.ones_like(n)), n)",
    ),
    "a masked write through a view": (
        """
        def f(v):
            out = v * 1.0
            flat = out.view(-1)
            flat[flat > 1.0] = 1.0
            return out
        """,
        "flat.masked_fill_(flat > 1.0, 1.0)",
    ),
    "a method of a module": (
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

            def forward(self, v):
                return v * self.w * v.sum().item()

        f = Net()
        """,
        "v.sum().detach()",
    ),
}


def _unless_torch_does_it(name, module):
    """Skip what this torch needs no edit for, after seeing that it does not."""
    if WRITES_THROUGH_A_MASK and name.startswith("a masked write") | (name == "masked write"):
        assert ds.check_transforms(module.f, X, transforms=("vmap",)).outcomes["vmap"] == "same"
        pytest.skip("this torch's vmap writes through a mask")


@pytest.mark.parametrize("name", REPAIRED)
@pytest.mark.sampled(7)
def test_the_edit_is_offered_and_its_patch_makes_torch_vmap_give_the_loop(name, written, tmp_path):
    source, expected = REPAIRED[name]
    module = written(source)
    _unless_torch_does_it(name, module)
    finding = found(module)
    assert finding.verified is True
    assert expected in finding.fix
    assert expected in finding.patch
    before = torch.stack([module.f(v) for v in X])
    if shutil.which("git") is None:
        pytest.skip("git is needed to apply a patch")
    (tmp_path / "edit.patch").write_text(finding.patch)
    subprocess.run(["git", "apply", "edit.patch"], cwd=tmp_path, check=True)
    after = imported(tmp_path / "mine.py")
    assert torch.equal(torch.vmap(after.f)(X), before)


GUARDS = {
    "sinc": "def f(v):\n    x = v[0]\n    if x.abs() < 1e-8:\n        return 1 - x * x / 6\n    return x.sin() / x\n",
    "unit": "def f(v):\n    n = v.norm()\n    if n < 1e-12:\n        return v * 0\n    return v / n\n",
    "root": "def f(v):\n    s = v.sum()\n    return s.sqrt() if s > 0 else s * 0\n",
    "entropy": "def f(v):\n    p = v[0].abs()\n    if p > 0:\n        return -p * p.log()\n    return p * 0\n",
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_gets_an_edit_whose_derivative_is_finite_on_both_sides(name, written, tmp_path):
    module = written(GUARDS[name])
    finding = found(module)
    assert finding.verified is True
    if not finding.patch:
        assert "driftscope.vmap" in finding.fix
        return
    (tmp_path / "edit.patch").write_text(finding.patch)
    subprocess.run(["git", "apply", "edit.patch"], cwd=tmp_path, check=True)
    after = imported(tmp_path / "mine.py")
    fresh = torch.cat([X, -X, X * 0, X * 1e-9, torch.eye(3, dtype=torch.float64)])
    torch.testing.assert_close(torch.vmap(after.f)(fresh), torch.stack([module.f(v) for v in fresh]))
    mine = torch.vmap(torch.func.grad(lambda v: after.f(v).sum()))(fresh)
    torch.testing.assert_close(mine, torch.stack([torch.func.grad(lambda v: module.f(v).sum())(v) for v in fresh]))


@pytest.mark.parametrize(
    ("condition", "pole", "offered"),
    [
        ("v.max() > 1", "v.abs().sqrt()", "torch.where(v.max() > 1, torch.ones_like(v), v).abs().sqrt()"),
        ("v.min() < -1", "v.abs().sqrt()", "torch.where(v.min() < -1, torch.ones_like(v), v).abs().sqrt()"),
        ("v.max() > 1", "(v.abs() + 1).sqrt()", "torch.where(v.max() > 1, v * 2, (v.abs() + 1).sqrt())"),
    ],
)
def test_poles_are_looked_for_in_rows_that_take_the_other_branch(written, condition, pole, offered):
    """The first row takes the branch with the pole, so that what is drawn from it with zeros says nothing."""
    module = written(f"def f(v):\n    if {condition}:\n        return v * 2\n    return {pole}\n")
    batch = torch.tensor([[0.3, -0.2, 0.5], [2.0, -3.0, 0.7], [0.4, 0.1, -0.6]], dtype=torch.float64)
    (finding,) = ds.check_transforms(module.f, batch, transforms=("vmap",)).findings
    assert finding.verified
    assert offered in finding.fix


def test_an_edit_is_not_verified_where_every_example_decides_alike(written):
    module = written("def f(v):\n    if v.abs().sum() > -1:\n        return v * 2\n    return v * 3\n")
    finding = found(module)
    assert finding.patch == "" or finding.verified is not True
    assert "as an edit" not in finding.fix


WITHDRAWN = {
    "branches of other shapes": """
        def f(v):
            if v.sum() > 100:
                return v.sum()
            return v * 1
        """,
    "a branch that writes in place": """
        def f(v):
            out = v.clone()
            if v.sum() > 0:
                out += 1
            return out
        """,
    "a masked write into an argument": """
        def f(v):
            v[v < 0] = 0.0
            return v * 2
        """,
    "a loop": """
        def f(v):
            while v.abs().sum() > 1:
                v = v / 2
            return v
        """,
}


@pytest.mark.parametrize("name", WITHDRAWN)
def test_an_edit_that_changes_values_or_derivatives_is_never_offered(name, written):
    module = written(WITHDRAWN[name])
    _unless_torch_does_it(name, module)
    finding = found(module)
    assert finding.patch == ""
    assert "torch.where(v" not in finding.fix
    assert finding.verified is not True or "driftscope.vmap" in finding.fix


def test_a_module_with_running_statistics_is_offered_torchs_own_replacement(written):
    module = written(
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = torch.nn.BatchNorm1d(3, dtype=torch.float64)

            def forward(self, v):
                return self.norm(torch.stack([v, v * v]))

        f = Net()
        """
    )
    kept = {name: value.clone() for name, value in module.f.state_dict().items()}
    finding = found(module, code="T024")
    assert finding.verified
    assert "replace_all_batch_norm_modules_" in finding.fix
    assert all(torch.equal(kept[name], value) for name, value in module.f.state_dict().items())


def test_out_that_is_captured_is_left_alone(written):
    module = written("O = torch.zeros(3, dtype=torch.float64)\n\ndef f(v):\n    return torch.sin(v, out=O) * 1\n")
    finding = found(module)
    assert finding.patch == ""


def test_no_grad_becomes_detach_for_forward_mode(written, tmp_path):
    module = written("def f(v):\n    with torch.no_grad():\n        s = v.norm()\n    return v * s\n")
    finding = found(module, transforms=("jvp",), code="T019")
    assert finding.verified
    assert "s = v.norm().detach()" in finding.patch
    assert "no_grad" in finding.patch.split("-    with")[1].splitlines()[0]


def test_nothing_is_edited_and_the_live_function_keeps_its_code(written, tmp_path):
    module = written(REPAIRED["item"][0])
    text, code = (tmp_path / "mine.py").read_text(), module.f.__code__
    found(module)
    assert (tmp_path / "mine.py").read_text() == text
    assert module.f.__code__ is code


def test_a_clean_function_has_no_edit(written):
    module = written("def f(v):\n    return torch.where(v > 0, v * 2, v).sum()\n")
    assert not [f for f in ds.check_transforms(module.f, X).findings if f.patch]


# --- patches -------------------------------------------------------------------------------------------------------


def test_edits_of_one_file_become_one_patch_and_conflicting_ones_do_not(written, tmp_path):
    module = written(
        """
        def f(v):
            return v * v.sum().item()

        def g(v):
            return v * v.max().item()
        """
    )
    one = ds.check_transforms(module.f, X, transforms=("vmap",)).first.patch
    two = ds.check_transforms(module.g, X, transforms=("vmap",)).first.patch
    other = one.replace("v.sum().detach()", "v.sum()")
    patch, count = one_patch([one, two, other, one])
    assert count == 2
    assert patch.count("--- a/") == 1
    (tmp_path / "both.patch").write_text(patch)
    if shutil.which("git") is None:
        pytest.skip("git is needed to apply a patch")
    subprocess.run(["git", "apply", "both.patch"], cwd=tmp_path, check=True)
    text = (tmp_path / "mine.py").read_text()
    assert "v.sum().detach()" in text
    assert "v.max().detach()" in text


def test_a_patch_names_files_from_the_nearest_folder_that_tells_them_apart(tmp_path, monkeypatch):
    project = tmp_path / "project"
    work = project / "work"
    work.mkdir(parents=True)
    for folder in (project, work):
        (folder / "net.py").write_text("a\n")
    (project / "other.py").write_text("a\n")
    monkeypatch.chdir(work)
    assert patched_path(str(work / "net.py")) == "net.py"
    assert patched_path(str(project / "other.py")) == "other.py"
    assert applied_in("other.py") == project
    # A nearer file of that name: the path says which of the two is meant.
    assert patched_path(str(project / "net.py")) == "project/net.py"
    assert applied_in("project/net.py") == tmp_path


def test_the_patch_of_a_file_above_is_applied_by_the_command_that_is_printed(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(
        "import math\n\nimport torch\n\n\ndef root(x):\n    return x / math.sqrt(x.pow(2).sum())\n"
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    options = ("--input", "x=3x4:float64", "--transforms", "vmap", "--fix", "--no-isolate")
    told = CliRunner().invoke(driftscope, ["transforms", "../net.py:root", *options]).stderr
    command = told.strip().splitlines()[-1].partition(": ")[2]
    assert command.startswith("cd ")
    subprocess.run(command, shell=True, check=True)
    assert "torch.sqrt" in (tmp_path / "net.py").read_text()


def test_an_edit_is_held_against_the_function_as_it_was():
    """The plain program is asked before the first edit stands in its place: an edit would agree with itself."""

    def right(x):
        return x * 2

    def edited(x):
        return x * 3

    trial = Trial(PlainAnswers(subject_of(right, (torch.ones(4, 3),), 0, "error")), "vmap").asked()
    with swapped(right, edited.__code__):
        verdict = trial.of(right, edited=True)
    assert not verdict.works
    assert trial.of(right, edited=True).works
    only_plainly = Trial(PlainAnswers(subject_of(right, (torch.ones(4, 3),), 0, "error")), "vmap").asked()
    assert only_plainly.answers.twice.value[0].eq(2).all()


def overflowing(v):
    if v.abs().max() < 1:
        return v.exp()
    return v * 2


def test_a_branch_that_overflows_where_it_is_not_taken_is_kept_from_it():
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    finding = ds.check_transforms(overflowing, x, transforms=("vmap",)).first
    assert finding is not None
    assert finding.verified
    edit = finding.fix.split("`")[1].removeprefix("return ")
    mended = eval(f"lambda v: {edit}", {"torch": torch})  # noqa: S307 - what driftscope itself proposes
    x[1, 0] = 100.0
    slopes = []
    for run in (lambda v: torch.stack([overflowing(row) for row in v]), torch.vmap(mended)):
        given = x.clone().requires_grad_()
        run(given).sum().backward()
        slopes.append(given.grad)
    torch.testing.assert_close(*slopes)
