"""``.pt2`` files are inspected before torch sees them: whatever would run code is refused, healthy files load."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

import driftscope as ds

MARK = "print('RAN')"


class Payload:
    def __reduce__(self):
        return (eval, (MARK,))


class Rich(nn.Module):
    """Control flow, a string and a number as inputs, a dict, a dynamic size."""

    def forward(self, x, mode: str, parts):
        y = torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x + parts["k"],))
        return torch.einsum("bi,bj->ij", y, y) if mode == "gram" else y


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    path = tmp_path_factory.mktemp("rich") / "rich.pt2"
    args = (torch.ones(4, 2), "gram", {"k": torch.ones(2)})
    batch = torch.export.Dim("batch", min=2, max=64)
    torch.export.save(torch.export.export(Rich(), args, dynamic_shapes=({0: batch}, None, {"k": None})), path)
    return path


def edited(path, target, edit):
    """Copy an archive, with ``edit`` applied to its members: ``name -> bytes`` in, changed in place."""
    with zipfile.ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    edit(members)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


def json_edit(suffix, change):
    def edit(members):
        name = next(name for name in members if name.endswith(suffix))
        tree = json.loads(members[name])
        change(tree)
        members[name] = json.dumps(tree).encode()

    return edit


def text_edit(old, new):
    def edit(members):
        name = next(name for name in members if name.endswith("models/model.json"))
        assert old.encode() in members[name], f"{old} is not in the file"
        members[name] = members[name].replace(old.encode(), new.encode())

    return edit


def saved(value) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def pickled_weight(members):
    config = next(name for name in members if name.endswith("weights_config.json"))
    tree = json.loads(members[config])
    entry = next(iter(tree["config"].values()))
    entry["use_pickle"] = True
    members[config] = json.dumps(tree).encode()
    weight = next(name for name in members if name.endswith(f"weights/{entry['path_name']}"))
    members[weight] = saved(Payload())


def added(name, data):
    def edit(members):
        root = next(iter(members)).split("/")[0]
        members[f"{root}/{name}"] = data

    return edit


def set_guards(tree):
    tree["guards_code"] = [f"[{MARK}]"]


with_guards = json_edit("models/model.json", set_guards)
_SINCE_2_9 = (pickled_weight, with_guards)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (pickled_weight, "pickled Python objects"),
        (added("data/constants/custom_obj_0", b"x"), "pickled Python object"),
        (added("data/constants/model.pt", saved(Payload())), "pickled Python objects"),
        (added("data/aotinductor/model/model.so", b"x"), "compiled code"),
        (added("extra/lib.so", b"x"), "compiled code"),
        (text_edit("Symbol('s77', positive=True, integer=True)", MARK.replace("'", "")), "not arithmetic"),
        (text_edit("Symbol('s77', positive=True, integer=True)", "().__class__"), "not arithmetic"),
        (text_edit("torch.ops.aten.add.Tensor", "torch.hub.load"), "not an operator of torch"),
        (text_edit("torch.ops.aten.add.Tensor", "torch.ops.load_library"), "not an operator of torch"),
        (text_edit('"as_string": "gram"', f'"as_string": "a\' or {MARK} or \'"'), "could become code"),
        (text_edit('"mode"', f'"mode=[{MARK}]"'), "could become code"),
        (with_guards, "not arithmetic"),
    ],
)
def test_what_would_run_code_is_refused(rich, pt2, tmp_path, edit, message, capsys):
    if edit in _SINCE_2_9 and "guards_code" not in torch._export.serde.schema.ExportedProgram.__annotations__:
        pytest.skip("torch 2.8 neither keeps weights one by one nor reads guards from a file")
    healthy = pt2 if edit is pickled_weight else rich
    with pytest.raises(ds.ProgramError, match=message) as refused:
        ds.program(edited(healthy, tmp_path / "evil.pt2", edit))
    assert "\n" not in str(refused.value)
    assert "RAN" not in capsys.readouterr().out


def test_rich_programs_load_and_run(rich):
    program = ds.program(rich)
    x, parts = torch.randn(5, 2), {"k": torch.ones(2)}
    assert torch.equal(program((x, "gram", parts)), Rich()(x, "gram", parts))


def test_an_unchanged_copy_loads(rich, tmp_path):
    assert ds.program(edited(rich, tmp_path / "copy.pt2", lambda members: None)).slots()


def test_pickled_sample_inputs_are_left_out(pt2, tmp_path, lookup_inputs, capsys):
    def evil_samples(members):
        members[next(name for name in members if "sample_inputs" in name)] = saved((Payload(),))

    program = ds.program(edited(pt2, tmp_path / "samples.pt2", evil_samples))
    assert program(lookup_inputs)["y"].shape == (2, 3, 4)
    assert "RAN" not in capsys.readouterr().out


class Mapped(nn.Module):
    """A row of a table for each example, which ends in the middle where there is no such row."""

    def forward(self, table, places):
        return torch.vmap(lambda row, place: row.index_select(0, place) * row.sum(), in_dims=(0, 0))(table, places)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    if importlib.util.find_spec("torch._functorch.predispatch") is None:
        pytest.skip("this torch has no operators that write torch.vmap into a file")
    path = tmp_path_factory.mktemp("mapped") / "mapped.pt2"
    torch.export.save(torch.export.export(Mapped(), (torch.ones(3, 4), torch.zeros(3, 2, dtype=torch.long))), path)
    assert b"_vmap_increment_nesting" in path.read_bytes()
    return path


def test_a_mapped_function_loads_and_runs(mapped):
    table, places = torch.randn(3, 4), torch.tensor([[0, 1], [2, 3], [3, 3]])
    assert torch.equal(ds.program(mapped)((table, places)), Mapped()(table, places))
    assert ds.compare(Mapped(), mapped, (table, places)).verdict is ds.Verdict.IDENTICAL


def test_a_mapped_function_that_stops_maps_nothing_else(mapped):
    with pytest.raises(ds.RuntimeRefused, match="index"):
        ds.program(mapped)((torch.randn(3, 4), torch.full((3, 2), 9)))
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    assert torch.rand(2).shape == (2,)  # what is drawn inside of torch.vmap is refused


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (text_edit('"as_string": "error"', '"as_string": "as it likes"'), "draws in a way"),
        (text_edit("_vmap_decrement_nesting", "lazy_load_decompositions"), "does not begin and end"),
        (text_edit("_vmap_increment_nesting", "_vmap_decrement_nesting"), "does not begin and end|draws in a way"),
    ],
)
def test_a_mapped_function_that_does_not_end_is_refused(mapped, tmp_path, edit, message):
    with pytest.raises(ds.ProgramError, match=message) as refused:
        ds.program(edited(mapped, tmp_path / "open.pt2", edit))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"not a zip"])
def test_damaged_files_are_said(content, tmp_path):
    path = tmp_path / "damaged.pt2"
    path.write_bytes(content)
    with pytest.raises(ds.ProgramError, match=r"damaged\.pt2"):
        ds.program(path)


def test_truncated_and_foreign_archives_are_said(pt2, tmp_path):
    path = tmp_path / "truncated.pt2"
    path.write_bytes(pt2.read_bytes()[:-200])
    with pytest.raises(ds.ProgramError, match=r"truncated\.pt2"):
        ds.program(path)
    with zipfile.ZipFile(tmp_path / "foreign.pt2", "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(ds.ProgramError, match=r"foreign\.pt2 is an archive, but not one"):
        ds.program(tmp_path / "foreign.pt2")


def test_pickled_modules_are_refused_with_what_to_do(tmp_path):
    path = tmp_path / "module.pt"
    torch.save(nn.Linear(2, 2), path)
    with pytest.raises(ds.ProgramError, match=r"export it \(torch\.export\.save"):
        ds.program(path)


@pytest.mark.slow
def test_a_transformers_cache_program_says_to_import_transformers(tmp_path):
    pytest.importorskip("transformers")
    script = """
import torch
from transformers import DynamicCache
from transformers.integrations.executorch import register_dynamic_cache_export_support
register_dynamic_cache_export_support()
class Grow(torch.nn.Module):
    def forward(self, x, past):
        return past.update(x, x, 0)[0].sum(-2), past
cache = DynamicCache()
cache.update(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), 0)
torch.export.save(torch.export.export(Grow(), (torch.ones(1, 1, 1, 3), cache)), "grow.pt2")
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True)
    load = "import driftscope as ds; ds.program('grow.pt2')"
    result = subprocess.run([sys.executable, "-c", load], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "import the library it belongs to first" in result.stderr
