"""References to files: each is made of the modules beside it, and of the same random numbers, whoever comes first."""

from __future__ import annotations

import importlib
import itertools
import random
import sys
import textwrap

import numpy as np
import pytest
import torch

import driftscope as ds
from driftscope.errors import ProgramError

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
NAMES = itertools.count()

#: How a model uses what lies beside it.
USES = {
    "a module": ("import {m}", "return {m}.scaled(x)"),
    "a name": ("from {m} import scaled", "return scaled(x)"),
    "a link": ("import {m}_linked", "return {m}_linked.scaled(x)"),
    "a package": ("from {p} import more", "return more.scaled(x)"),
    "a package without __init__": ("import {n}.inner", "return {n}.inner.scaled(x)"),
    "a relative import": ("from {p}.deep import again", "return again(x)"),
    "while it runs": ("import {m}", "import {m}\n        return {m}.scaled(x)"),
    "a package while it runs": ("import {p}", "from {p}.deep import again\n        return again(x)"),
    "a relative import while it runs": ("from {p}.deep import late", "return late(x)"),
    "by its name as text": ("import importlib\nheld = importlib.import_module('{p}.more')", "return held.scaled(x)"),
}
MODEL = """import torch
{top}

class Net(torch.nn.Module):
    def forward(self, x):
        {body}
"""


@pytest.fixture
def checkout(tmp_path):
    """Write a folder with a model and what it uses, all multiplying by a number; names are this test's own."""
    number = next(NAMES)
    names = {"m": f"layers{number}", "p": f"parts{number}", "n": f"loose{number}"}
    before = list(sys.path)

    def write(folder: str, factor: float, use: str):
        root = tmp_path / folder
        top, body = (text.format(**names) for text in USES[use])
        scaled = f"def scaled(x): return x * {factor}\n"
        files = {
            f"model{number}.py": MODEL.format(top=top, body=body),
            f"{names['m']}.py": scaled,
            f"{names['p']}/__init__.py": "",
            f"{names['p']}/more.py": scaled,
            f"{names['p']}/deep.py": textwrap.dedent("""
                from .more import scaled
                def again(x): return scaled(x)
                def late(x):
                    from . import more
                    return more.scaled(x)
            """),
            f"{names['n']}/inner.py": scaled,
            "onnx/notes.py": "",  # no package, and no reason to hide the one that is installed
        }
        for file, text in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        (tmp_path / f"{folder}_shared.py").write_text(scaled)
        (root / f"{names['m']}_linked.py").unlink(missing_ok=True)
        (root / f"{names['m']}_linked.py").symlink_to(tmp_path / f"{folder}_shared.py")
        return root / f"model{number}.py"

    yield write
    assert sys.path == before
    own = (*names.values(), f"model{number}", f"_driftscope_model{number}")
    for name in [name for name in sys.modules if name.startswith(own)]:
        del sys.modules[name]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_each_model_is_made_of_what_lies_beside_it(checkout, use, factor):
    """Both were made of the modules of the first: two versions of a model were IDENTICAL, whatever was changed."""
    old, new = (checkout(*given, use) for given in (("old", 2.0), ("new", factor)))
    first, second = (ds.program(f"{path}:Net") for path in (old, new))
    expected = "IDENTICAL" if factor == 2.0 else "DIFFERENT"
    assert ds.compare(first, second, (X,)).verdict == expected
    assert ds.compare(second, first, (X,)).verdict == expected
    assert torch.equal(first([X]), X * 2.0)
    assert torch.equal(second([X]), X * factor)
    assert ds.compare(f"{old}:Net", f"{old}:Net", (X,)).verdict == "IDENTICAL"


@pytest.mark.parametrize("use", ["a module", "a package", "a relative import while it runs"])
def test_a_module_on_the_path_is_not_made_of_what_a_file_left_behind(checkout, monkeypatch, use):
    old, new = checkout("old", 2.0, use), checkout("new", 3.0, use)
    assert torch.equal(ds.program(f"{old}:Net")([X]), X * 2.0)
    monkeypatch.chdir(new.parent)
    program = ds.program(f"{new.stem}:Net")
    assert torch.equal(program([X]), X * 3.0)
    assert torch.equal(ds.program(f"{old}:Net")([X]), X * 2.0)
    assert torch.equal(program([X]), X * 3.0)


@pytest.mark.parametrize("use", ["a module", "a package", "a relative import while it runs"])
def test_what_a_reference_imported_is_read_again_once_it_was_edited(checkout, monkeypatch, use):
    """Only the file that is named was; those beside it stayed as they were at the first comparison."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python looks at whole seconds alone
    path = checkout("mine", 2.0, use)
    monkeypatch.chdir(path.parent)
    for reference in (f"{path}:Net", f"{path.stem}:Net"):
        for factor in (2.0, 3.25, 4.0):
            checkout("mine", factor, use)
            assert torch.equal(ds.program(reference)([X]), X * factor)
        held = sys.modules[path.stem.replace("model", "layers" if use == "a module" else "parts")]
        ds.program(reference)
        assert sys.modules[held.__name__] is held, "nothing was edited"


def test_a_file_of_a_package_may_import_from_its_package(tmp_path, monkeypatch):
    for folder, factor in (("old", 2.0), ("new", 3.0)):
        inner = tmp_path / folder / "own_nets" / "inner"
        inner.mkdir(parents=True)
        for empty in (inner, inner.parent):
            (empty / "__init__.py").write_text("")
        (inner.parent / "layers.py").write_text(f"def scaled(x): return x * {factor}\n")
        (inner / "model.py").write_text("from ..layers import scaled\ndef net(x): return scaled(x)\n")
    old, new = (f"{tmp_path / folder}/own_nets/inner/model.py:net" for folder in ("old", "new"))
    assert ds.compare(old, new, (X,)).verdict == "DIFFERENT"
    assert ds.compare(new, new, (X,)).verdict == "IDENTICAL"
    # What a file of the old package left behind is not what the name stands for in the new folder.
    assert ds.compare(old, old, (X,)).verdict == "IDENTICAL"
    for folder, verdict in (("new", "DIFFERENT"), ("old", "IDENTICAL")):
        monkeypatch.chdir(tmp_path / folder)
        assert ds.compare(old, "own_nets.inner.model:net", (X,)).verdict == verdict
    (tmp_path / "alone.py").write_text("from .layers import scaled\n")
    with pytest.raises(ProgramError, match="no known parent package"):
        ds.program(f"{tmp_path / 'alone.py'}:net")


def test_what_the_user_has_imported_stays_what_it_is(checkout, monkeypatch):
    mine, others = checkout("mine", 2.0, "a module"), checkout("others", 3.0, "a module")
    name = mine.stem.replace("model", "layers")
    monkeypatch.syspath_prepend(str(mine.parent))
    module = importlib.import_module(name)
    assert torch.equal(ds.program(f"{others}:Net")([X]), X * 3.0)
    assert sys.modules[name] is module
    assert importlib.import_module(name).scaled(1.0) == 2.0
    # A folder of its name that is no package does not hide it.
    (others.parent / f"{name}.py").unlink()
    (others.parent / name).mkdir()
    assert torch.equal(ds.program(f"{others}:Net")([X]), X * 2.0)
    # Of its own folder it is shared: what was registered there is there.
    module.scaled = lambda x: x * 7.0
    assert torch.equal(ds.program(f"{mine}:Net")([X]), X * 7.0)


def test_files_of_one_name_are_two_modules_and_one_file_is_one(checkout):
    old, new = checkout("old", 2.0, "a module"), checkout("new", 3.0, "a module")
    classes = [type(ds.program(f"{path}:Net").module) for path in (old, new)]
    assert classes[0].__module__ != classes[1].__module__
    assert [sys.modules[c.__module__].Net for c in classes] == classes
    assert type(ds.program(f"{old}:Net").module).__module__ == classes[0].__module__


def test_a_file_that_fails_leaves_everything_as_it_was(checkout):
    old, new = checkout("old", 2.0, "a module"), checkout("new", 3.0, "a module")
    first = ds.program(f"{old}:Net")
    layers = sys.modules[old.stem.replace("model", "layers")]
    new.write_text(new.read_text() + "\nraise ValueError('not today')\n")
    with pytest.raises(ProgramError, match="not today"):
        ds.program(f"{new}:Net")
    assert sys.modules[old.stem.replace("model", "layers")] is layers
    assert torch.equal(first([X]), X * 2.0)


DRAWING = """
import random, numpy, torch
HELD = torch.nn.Linear(3, 3)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.scale = random.random() + numpy.random.random()

    def forward(self, x):
        return self.layer(x) * self.scale + HELD(x)

def seeded():
    torch.manual_seed(7)
    return Net()
"""


def test_what_a_factory_draws_is_the_same_for_a_for_b_and_the_next_time(tmp_path):
    """Two untrained models of one class had nothing in common, and no record of them could be made again."""
    file = tmp_path / "drawing.py"
    file.write_text(DRAWING)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    assert ds.compare(f"{file}:Net", f"{file}:Net", (x,)).verdict == "IDENTICAL"
    found = ds.program(f"{file}:Net")
    torch.manual_seed(123)
    again = ds.program(f"{file}:Net")
    torch.set_rng_state(before[0])
    assert torch.equal(found([x]), again([x]))
    assert not torch.equal(found([x]), ds.program(f"{file}:seeded")([x])), "a factory's own seed holds"
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_seed_that_a_module_sets_for_itself_holds_for_its_factories(tmp_path, monkeypatch, by_name):
    """As in the script that exported the model: ``torch.manual_seed`` at its top, then the factory."""
    source = "import torch\ntorch.manual_seed(1234)\ndef make(): return torch.nn.Linear(3, 3)\n"
    (tmp_path / "seeding_itself.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        expected = torch.nn.Linear(3, 3)
    reference = "seeding_itself:make" if by_name else f"{tmp_path / 'seeding_itself.py'}:make"
    for _ in range(3):
        assert ds.compare(expected, reference, (X,)).verdict == "IDENTICAL"
