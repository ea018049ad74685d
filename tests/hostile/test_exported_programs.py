"""A ``.pt2`` of a stranger is data: what would run code is refused in a sentence, honest files load as they were."""

from __future__ import annotations

import ast
import io
import json
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import driftscope as ds
from driftscope.programs.loading.pt2 import read_exported
from driftscope.programs.loading.pt2.expressions import NotArithmetic, guard_text, symbol_text
from hostile import exported_files as files


@pytest.mark.parametrize("name", files.ATTACKS)
def test_what_would_run_code_is_refused_in_a_sentence(
    members: files.Members, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attack, words = files.ATTACKS[name]
    marker = tmp_path / "RAN"
    path = files.write(tmp_path / "evil.pt2", attack(members, marker))
    with pytest.raises(ds.ProgramError, match=words) as refused:
        ds.program(path)
    assert "\n" not in str(refused.value)
    assert not marker.exists()
    assert "RAN" not in capsys.readouterr().out
    assert "this" not in sys.modules


def test_the_unchanged_neighbour_loads(members: files.Members, tmp_path: Path) -> None:
    path = files.write(tmp_path / "honest.pt2", list(members.items()))
    args = (torch.randn(5, 4), {"k": torch.ones(4)})
    assert torch.equal(ds.program(path)(args), files.affine()(*args))


def test_a_compressed_neighbour_loads(members: files.Members, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "honest.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    assert ds.program(tmp_path / "honest.pt2").slots()


def test_strings_of_operators_stay_strings(members: files.Members, tmp_path: Path) -> None:
    """A message with quotes and brackets, as torch writes them, is an argument and not code."""

    class Checks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = x.sum().item()
            torch._check(n > 2, lambda: 'n\'s "value" (must) be; bigger')
            return x * n

    torch.export.save(torch.export.export(Checks(), (torch.full((3,), 2),)), tmp_path / "checks.pt2")
    with zipfile.ZipFile(tmp_path / "checks.pt2") as archive:
        assert any(b"_assert_scalar" in archive.read(n) for n in archive.namelist() if n.endswith("model.json"))
    assert torch.equal(ds.program(tmp_path / "checks.pt2")((torch.full((3,), 2),)), torch.full((3,), 12))


def test_the_format_of_older_torch_loads_and_its_pickles_do_not(tmp_path: Path) -> None:
    from torch._export.serde.serialize import serialize

    args = (torch.randn(3, 4), {"k": torch.ones(4)})
    made = serialize(torch.export.export(files.affine(), args))
    members = {
        "version": b"8.20",
        "serialized_exported_program.json": made.exported_program,
        "serialized_state_dict.pt": made.state_dict,
        "serialized_constants.pt": made.constants,
        "serialized_example_inputs.pt": made.example_inputs,
    }
    program = ds.program(files.write(tmp_path / "old.pt2", list(members.items())))
    assert torch.equal(program(args), files.affine()(*args))
    members["serialized_constants.pt"] = files.evil_pt(tmp_path / "RAN")
    with pytest.raises(ds.ProgramError, match="pickled Python objects"):
        ds.program(files.write(tmp_path / "evil.pt2", list(members.items())))
    assert not (tmp_path / "RAN").exists()


def test_the_weights_of_torch_2_8_load(members: files.Members, tmp_path: Path) -> None:
    """It kept one pickle for all weights, in the archive of today."""
    from torch._export.serde.serialize import serialize

    made = serialize(torch.export.export(files.affine(), (torch.randn(3, 4), {"k": torch.ones(4)})))
    older = {name: data for name, data in members.items() if "/weights/" not in name and "/constants/" not in name}
    older |= {"base/data/weights/model.pt": made.state_dict, "base/data/constants/model.pt": made.constants}
    args = (torch.randn(5, 4), {"k": torch.ones(4)})
    program = ds.program(files.write(tmp_path / "older.pt2", list(older.items())))
    assert torch.equal(program(args), files.affine()(*args))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Symbol('s77', positive=True, integer=True)", 8),
        ("Add(Mul(Integer(2), Symbol('s77', integer=True)), Integer(-1))", 15),
        ("2*s77 - 1", 15),
        ("FloorDiv(Symbol('s77', positive=True, integer=True), Integer(3))", 2),
        ("Max(Integer(1), Mod(Symbol('s77', integer=True), Integer(5)))", 3),
        ("Pow(Symbol('s77', integer=True), Integer(2))", 64),
        ("Mul(Rational(1, 2), Symbol('s77', integer=True))", 4),
    ],
)
def test_symbols_keep_their_meaning(text: str, value: int) -> None:
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod

    again = sympy.sympify(symbol_text(text), locals={"FloorDiv": FloorDiv, "Mod": Mod})
    assert again.subs(dict.fromkeys(again.free_symbols, 8)) == value


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].size()[0] <= 64",
        "((L['x'].size()[1]) % 8) == 0",
        "2*L['x'].size()[0] - 3 == L['y']['k'][0].stride()[1]",
        "L['cache'].keys[0].shape[2] // 2 != max(1, 2)",
        "not L['x'].storage_offset() > 0 and L['x'].size()[0] ** 2 < 100",
    ],
)
def test_guards_keep_their_meaning(text: str) -> None:
    assert _meaning(guard_text(text)) == _meaning(text)


@pytest.mark.parametrize(
    "text",
    [
        *("2**2**2**2**2**2", "s0**100", "x", "[s0]", "s0.is_Integer", "lambda: 1", "s0 if s0 else 1", "'a'", "S(1)"),
        *(
            "Symbol('a b')",
            "Symbol('x', cls=1)",
            "Float('1e99999')",
            "Integer('7')",
            "1 << 10**9",
            "s0[0]",
            "(s0 := 2)",
        ),
        *("(" * 300 + "s0" + ")" * 300, "-" * 5000 + "s0", "+".join(["s0"] * 3000), "s0**s0", "f'{s0}'", "s0\x00"),
    ],
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(NotArithmetic):
        symbol_text(text)


def _meaning(text: str) -> str:
    return ast.dump(ast.parse(text, mode="eval"))


def _same_as_torch_reads(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    stream = io.BytesIO()
    torch.export.save(exported, stream)
    path = Path("honest.pt2")
    path.write_bytes(stream.getvalue())
    ours, theirs = read_exported(path), torch.export.load(path)
    assert str(ours.graph) == str(theirs.graph)
    assert str(ours.graph_signature) == str(theirs.graph_signature)
    assert ours.range_constraints == theirs.range_constraints
    assert list(map(_meaning, ours._guards_code)) == list(map(_meaning, theirs._guards_code))
    return ours


@pytest.mark.slow
def test_honest_programs_of_exportdb_load_as_torch_loads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._export.db.examples import all_examples

    monkeypatch.chdir(tmp_path)
    loaded = 0
    for case in all_examples().values():
        try:
            exported = torch.export.export(
                case.model, case.example_args, case.example_kwargs, dynamic_shapes=case.dynamic_shapes, strict=False
            )
        except Exception:  # cases that show what cannot be exported
            continue
        _same_as_torch_reads(exported).module()
        loaded += 1
    assert loaded >= 35


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["bert", "llama", "t5", "vit"])
def test_honest_programs_of_transformers_load_as_torch_loads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    monkeypatch.chdir(tmp_path)
    register_dynamic_cache_export_support()
    ids = torch.arange(12).reshape(2, 6)
    size = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
    if kind == "bert":
        model, inputs = transformers.BertModel(transformers.BertConfig(**size, vocab_size=40)), {"input_ids": ids}
    elif kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, vocab_size=40, num_key_value_heads=2))
        inputs = {"input_ids": ids[:, :1], "past_key_values": model(ids, use_cache=True).past_key_values}
    elif kind == "t5":
        config = transformers.T5Config(
            d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=40, use_cache=False
        )
        model, inputs = transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "decoder_input_ids": ids}
    else:
        config = transformers.ViTConfig(**size, image_size=16, patch_size=8)
        model, inputs = transformers.ViTModel(config), {"pixel_values": torch.randn(1, 3, 16, 16)}
    with torch.no_grad():
        exported = torch.export.export(model.eval(), (), inputs, strict=False)
    exported._example_inputs = None  # torch itself can only unpickle a cache among them
    _same_as_torch_reads(exported).module()


def test_guards_of_an_honest_export_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Even(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 2) if x.shape[0] * 2 == y.shape[0] else x

    monkeypatch.chdir(tmp_path)
    sizes = ({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO})
    exported = torch.export.export(Even(), (torch.ones(6), torch.ones(12)), dynamic_shapes=sizes)
    read = _same_as_torch_reads(exported)
    with pytest.raises((AssertionError, RuntimeError), match="Guard failed"):
        read.module()(torch.ones(6), torch.ones(11))
    assert json.dumps(read._guards_code)
