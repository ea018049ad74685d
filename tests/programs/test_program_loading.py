"""Programs by name, by file, by plug-in, and from recorded outputs."""

from __future__ import annotations

import json
import sys
import textwrap
from importlib.metadata import EntryPoint

import numpy as np
import onnx
import pytest
import torch
from test_input_sources import polygraphy_array
from tiny_models import unary
from torch import nn

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.programs.feeding.pairing import pair_inputs
from driftscope.programs.loading import third_party

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)

CODE = """
    import torch
    from torch import nn

    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x

    module = Twice().eval()

    def function(x):
        return torch.mul(x, 2)

    def factory():
        return Twice().eval()

    def with_inputs(scale=3.0):
        return Twice().eval(), {"x": torch.full((1, 2), scale)}

    def with_spec():
        return Twice().eval(), {"x": "4x2:float32:ones"}

    def broken():
        raise RuntimeError("not today")

    def wrong():
        return 3

    class Holder:
        inner = Twice()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_models.py"
    path.write_text(textwrap.dedent(CODE))
    return path


@pytest.mark.parametrize("name", ["module", "function", "factory", "with_inputs", "Twice", "Holder.inner"])
def test_objects_and_factories_are_found_in_files(file, name):
    assert torch.equal(ds.program(f"{file}:{name}")(X), 2 * X)


def test_a_module_made_of_its_class_is_in_eval_mode_and_what_a_factory_returns_as_it_is(tmp_path):
    text = "import torch\nclass Net(torch.nn.Dropout):\n    pass\n\ndef training():\n    return Net()\n"
    (tmp_path / "nets.py").write_text(text)
    named = ds.program(f"{tmp_path}/nets.py:Net"), ds.program(f"{tmp_path}/nets.py:training")
    assert [program.module.training for program in named] == [False, True]


def test_modules_in_the_working_folder_are_found(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    assert torch.equal(ds.program("my_models:factory")(X), 2 * X)
    assert torch.equal(ds.program("torch.nn:Identity")(X), X)


def test_a_factorys_inputs_come_with_its_program(file):
    assert ds.program(f"{file}:with_inputs")().tolist() == [[6.0, 6.0]]
    assert ds.program(f"{file}:with_spec")().tolist() == [[2.0, 2.0]] * 4
    a, b = ds.program(f"{file}:with_inputs"), ds.program(f"{file}:module")
    bound_a, bound_b, _ = pair_inputs(a, b)
    assert torch.equal(a(bound_a), b(bound_b))
    with pytest.raises(ds.InputError, match="does not say what its inputs look like"):
        ds.program(f"{file}:module")()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}:nothing", "has no 'nothing'; it has"),
        ("{file}:broken", "failed when called: RuntimeError: not today"),
        ("{file}:wrong", "object of class int is not a program"),
        ("{file}", "needs the name of an object or a factory"),
        ("no_such_file.py:x", "no such file"),
        ("no_such_module:x", "module 'no_such_module' cannot be imported"),
        ("torch.nn:NoSuchLayer", "torch.nn has no 'NoSuchLayer'"),
        ("hello world", "is not a program driftscope can load: give a path"),
        ("model.mdl", "is not a program driftscope can load: give a path"),
        ("model.h5", "Keras model, which driftscope cannot run: run it there, save its outputs"),
        ("model.engine", "a TensorRT engine, which driftscope cannot run"),
        ("missing.onnx", "missing.onnx: no such file"),
        ("missing.pt2", "missing.pt2: no such file"),
    ],
)
def test_what_cannot_be_found_is_said(file, name, message):
    with pytest.raises(ds.ProgramError) as refused:
        ds.program(name.format(file=file))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_fails_is_said(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_package_here\nx = 1\n")
    with pytest.raises(ds.ProgramError, match="fails when imported: ModuleNotFoundError"):
        ds.program(f"{tmp_path / 'bad.py'}:x")


def test_objects_that_are_no_program_are_said():
    for thing, message in ((3, "class int is not a program"), (nn.Linear, "is a class"), (None, "class NoneType")):
        with pytest.raises(ds.ProgramError, match=message):
            ds.program(thing)


def test_a_program_passes_through_unless_options_would_change_it():
    program = ds.program(nn.Identity())
    assert ds.program(program) is program
    with pytest.raises(ds.ProgramError, match="is a Program already"):
        ds.program(program, level="all")


def test_names_and_default_inputs_can_be_given():
    program = ds.program(nn.Identity(), name="mine", inputs=X)
    assert program.name == "mine"
    assert torch.equal(program(), X)


# --- third-party runtimes -------------------------------------------------------------------------------------


class Doubler(ds.Program):
    """A whole runtime in a few lines, as a plug-in would write it."""

    kind = "doubler"
    runtime = "doubler 1.0"

    def bind(self, inputs=None):
        from driftscope.programs.protocol import Bound

        made = ds.inputs(inputs).realise()
        return Bound(self, made.args, {}, {"0": made.args[0]}, {"0": made.args[0]})

    def __call__(self, inputs=None):
        return self.bind(inputs).args[0] * 2


class Weird:
    """Something only a plug-in can run."""


def claim(obj, **options):
    return Doubler(options.get("name", "weird")) if isinstance(obj, Weird) else None


def claim_wrongly(obj):
    return "not a program"


def fail(obj):
    raise ImportError("libdoubler.so")


def plugged(monkeypatch, **claims):
    entries = [EntryPoint(name, f"{__name__}:{function}", third_party.GROUP) for name, function in claims.items()]
    monkeypatch.setattr(third_party, "entry_points", lambda group: entries if group == third_party.GROUP else [])


def test_a_plug_in_is_asked_for_what_nothing_else_runs(monkeypatch):
    plugged(monkeypatch, doubler="claim")
    program = ds.program(Weird())
    assert torch.equal(program(X), 2 * X)
    assert program.describe()["runtime"] == "doubler 1.0"
    assert ds.program(Weird(), runtime="doubler", name="named").name == "named"
    with pytest.raises(CannotLift, match=r"doubler 1.0"):
        program.lift_source(X)
    with pytest.raises(ds.ProgramError, match="class int is not a program"):
        ds.program(3)


@pytest.mark.parametrize(
    ("claims", "runtime", "message"),
    [
        ({}, "openvino", "no runtime is called 'openvino'; third-party runtimes here: none is installed"),
        ({"doubler": "claim"}, "openvino", "third-party runtimes here: doubler"),
        ({"doubler": "claim"}, "doubler", "cannot run a Linear"),
        ({"wrong": "claim_wrongly"}, "wrong", "returned a str, not a driftscope Program"),
        ({"broken": "fail"}, "broken", "failed: ImportError: libdoubler.so"),
    ],
)
def test_plug_ins_that_cannot_are_said(monkeypatch, claims, runtime, message):
    plugged(monkeypatch, **claims)
    with pytest.raises(ds.ProgramError) as refused:
        ds.program(nn.Linear(2, 2), runtime=runtime)
    assert message in str(refused.value)


# --- recorded outputs -----------------------------------------------------------------------------------------


def test_recorded_outputs_stand_for_a_program(tmp_path):
    np.savez(tmp_path / "outputs.npz", y=X.numpy())
    for source in ({"y": X}, {"y": X.numpy()}, tmp_path / "outputs.npz", str(tmp_path / "outputs.npz")):
        program = ds.recorded(source)
        assert (program.kind, program.flat) == ("recorded", True)
        assert torch.equal(program("anything at all")["y"], X)
        with pytest.raises(CannotLift):
            program.lift_source()
    assert torch.equal(ds.program(str(tmp_path / "outputs.npz"))()["y"], X)
    assert torch.equal(ds.recorded((X, [X]))()[1][0], X)


def test_polygraphy_outputs_are_read(tmp_path):
    array = polygraphy_array(X.numpy())
    lazy = {"values": array, "polygraphy_class": "LazyArray"}
    result = {
        "outputs": {"y": lazy, "z": array},
        "runtime": 0.1,
        "runner_name": "r",
        "polygraphy_class": "IterationResult",
    }
    data = {"lst": [["onnxrt-runner", [result]]], "polygraphy_class": "RunResults"}
    path = tmp_path / "outputs.json"
    path.write_text(json.dumps(data))
    program = ds.recorded(path)
    assert torch.equal(program()["y"], X)
    assert torch.equal(program()["z"], X)
    assert program.runtime == "onnxrt-runner"
    data["lst"][0][1].append(result)
    path.write_text(json.dumps(data))
    with pytest.raises(ds.ProgramError, match="2 iterations"):
        ds.recorded(path)
    path.write_text(json.dumps([{"x": array}]))
    with pytest.raises(ds.ProgramError, match="no Polygraphy run results"):
        ds.recorded(path)


@pytest.mark.parametrize("name", ["missing.npz", "missing.json", "outputs.csv"])
def test_outputs_that_cannot_be_read_are_said(name):
    with pytest.raises(ds.ProgramError, match=name):
        ds.recorded(name)


def test_recorded_outputs_pair_with_a_program():
    program, record = ds.program(unary()), ds.recorded({"y": X})
    for a, b in ((program, record), (record, program)):
        bound_a, bound_b, found = pair_inputs(a, b, X)
        assert torch.equal(a(bound_a)["y"], b(bound_b)["y"])
        assert found == []


@pytest.mark.parametrize(
    ("graph", "producer", "name"),
    [
        ("resnet", "pytorch", "resnet"),
        ("main_graph", "pytorch", "ONNX model of pytorch"),
        ("", "", "ONNX model"),
    ],
)
def test_a_model_in_memory_is_called_by_a_name_that_tells_it_from_others(graph, producer, name):
    model = unary()
    model.graph.name, model.producer_name = graph, producer
    assert ds.program(model).name == name


def test_recorded_outputs_do_not_belong_to_drawn_inputs(onnx_file):
    file, dumped = ds.program(onnx_file), ds.recorded({"y": torch.zeros(2, 4)}, name="dump.json")
    for a, b in ((file, dumped), (dumped, file)):
        with pytest.raises(ds.InputError, match=r"dump\.json holds outputs only: give the inputs"):
            ds.compare(a, b)


def test_two_records_need_no_inputs():
    recorded = ds.recorded({"y": torch.zeros(2, 4)})
    assert str(ds.compare(recorded, recorded).verdict) == "IDENTICAL"


def test_a_folder_is_its_model(tmp_path):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=32,
        max_position_embeddings=16,
    )
    model = BertModel(config).eval()
    model.save_pretrained(tmp_path / "bert")
    ids = torch.arange(8)[None]
    loaded = ds.program(str(tmp_path / "bert"))
    assert torch.equal(loaded(ds.inputs({"input_ids": ids}))["last_hidden_state"], model(ids).last_hidden_state)
    with pytest.raises(ds.ProgramError, match=r"is a folder that holds neither an \.onnx file nor config\.json"):
        ds.program(str(tmp_path))
    for name in ("a.onnx", "b.onnx"):
        onnx.save(unary("Relu"), str(tmp_path / name))
    with pytest.raises(ds.ProgramError, match=r"is a folder that holds 2 models: give one of a\.onnx, b\.onnx"):
        ds.program(tmp_path)
    (tmp_path / "b.onnx").unlink()
    assert ds.program(tmp_path).kind == "onnx"


@pytest.fixture
def small_bert(tmp_path):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=32, max_position_embeddings=16, **sizes)).save_pretrained(tmp_path / "my bert")
    return tmp_path / "my bert"


def test_a_hugging_face_folder_says_what_its_inputs_are_and_nothing_on_stderr(small_bert, capfd):
    import transformers

    bars = transformers.utils.logging.is_progress_bar_enabled()
    program = ds.program(small_bert)
    assert {k: (tuple(v.shape), v.dtype) for k, v in program.default_inputs.kwargs.items()} == {
        "input_ids": ((2, 8), torch.int64)}  # fmt: skip
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled() == bars


def test_weights_that_transformers_would_draw_at_random_are_refused(small_bert):
    from safetensors.torch import load_file, save_file

    file = small_bert / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors, file, metadata={"format": "pt"})
    ds.program(small_bert)  # twin: whole, it is taken
    del tensors["encoder.layer.0.output.dense.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ds.ProgramError, match=r"would draw encoder\.layer\.0\.output\.dense\.weight at random"):
        ds.program(small_bert)


def test_code_beside_a_model_is_never_run(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["Mine"], "model_type": "bert", "auto_map": {"AutoModel": "mine.Mine"}}'
    )
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ds.ProgramError, match=r"names the class 'Mine', which transformers .* does not have"):
        ds.program(tmp_path)
    assert not (tmp_path / "ran").exists()
