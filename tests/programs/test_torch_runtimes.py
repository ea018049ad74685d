"""torch programs: run as they are, without changing the caller's module, tensors or modes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.lift.sources import lift_bound
from driftscope.programs.loading.frameworks import framework_of

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


class InPlace(nn.Module):
    def forward(self, x):
        return x.add_(1)


class Forces(nn.Module):
    def forward(self, x):
        x = x.requires_grad_()
        return torch.autograd.grad((x**2).sum(), x)[0]


class ForgottenTraining(nn.Module):
    def __init__(self, training=None):
        super().__init__()
        self.on = training

    def forward(self, x):
        return F.dropout(x, 0.25) if self.on is None else F.dropout(x, 0.25, self.on)


class AttentionDropout(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=self.p)


MODULE = InPlace()


def doubled(x):
    return np.multiply(x, 2)


def again(x):
    return again(x) if x is None else MODULE(x)


def test_a_module_runs_as_it_is(lookup, lookup_inputs):
    program = ds.program(lookup)
    with torch.no_grad():
        expected = lookup(*lookup_inputs)["y"]
    assert torch.equal(program(lookup_inputs)["y"], expected)
    assert not program(lookup_inputs)["y"].requires_grad
    assert program.kind == "torch"
    assert program.describe()["class"].endswith("Lookup")


def test_the_callers_tensors_are_not_written():
    x = X.clone()
    assert torch.equal(ds.program(InPlace())(x), X + 1)
    assert torch.equal(x, X)


def test_programs_that_differentiate_inside_run():
    assert torch.equal(ds.program(Forces())(X), 2 * X)


def test_running_statistics_are_left_alone():
    norm = nn.BatchNorm1d(3)
    ds.program(norm)(X)
    assert norm.running_mean.tolist() == [0, 0, 0]
    assert norm.num_batches_tracked == 0


@pytest.mark.parametrize(
    ("module", "given", "words"),
    [
        (nn.Linear(4, 2), X, "mat1 and mat2 shapes cannot be multiplied"),
        (nn.Linear(3, 2), X.double(), "must have the same dtype"),
        (lambda x: x.nothing, X, "AttributeError"),
    ],
)
def test_a_refusal_keeps_torchs_words(module, given, words):
    with pytest.raises(ds.RuntimeRefused) as refused:
        ds.program(module, framework="torch")(given)
    assert refused.value.stage == "run"
    assert words in refused.value.words
    assert "\n" not in str(refused.value)


def test_dtype_and_device_work_on_a_copy():
    linear = nn.Linear(3, 2)
    half = ds.torch(linear, dtype="float16", device="cpu")
    assert half(X).dtype == torch.float16
    assert linear.weight.dtype == torch.float32
    assert half.describe()["dtype"] == "float16"
    assert half.lift_source(X).args[0].dtype == torch.float32, "the rounding of inputs is part of the function"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "flot"}, "unknown dtype 'flot'"),
        ({"dtype": torch.int8}, "floating-point format"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used here"),
        ({"compile": "inductorr"}, "no backend 'inductorr'"),
        ({"levl": "all"}, "unknown option 'levl'"),
    ],
)
def test_bad_options_are_said(options, message):
    with pytest.raises(ds.ProgramError, match=message):
        ds.torch(nn.Linear(3, 2), **options)


# --- what is noticed before numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1)), "1 (drops 10% of its input)"),
        (nn.Sequential(nn.BatchNorm1d(3)), "normalises by the batch"),
        (nn.GRU(3, 2, num_layers=2, dropout=0.5), "drops 50% between layers"),
        (nn.MultiheadAttention(3, 1, dropout=0.2), "attention weights"),
    ],
)
def test_train_mode_that_matters_is_found(module, words):
    given = (X, X, X) if isinstance(module, nn.MultiheadAttention) else X
    (finding,) = ds.program(module.train()).check(given)
    assert finding.code == "O003"
    assert words in finding.what
    assert ds.program(module.eval()).check(given) == []


@pytest.mark.parametrize(
    "module", [nn.Linear(3, 2), nn.Dropout(0.0), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False)]
)
def test_train_mode_that_changes_nothing_is_not_flagged(module):
    assert ds.program(module.train()).check(X) == []


@pytest.mark.parametrize("module", [ForgottenTraining(), ForgottenTraining(True), AttentionDropout(0.1)])
def test_dropout_left_on_is_found_with_its_line(module):
    (finding,) = ds.program(module.eval()).check_draws(X[None])
    assert finding.code == "O004"
    assert finding.where.file == __file__
    line = Path(__file__).read_text().splitlines()[finding.where.line - 1]
    assert "dropout" in line


@pytest.mark.parametrize("module", [ForgottenTraining(False), AttentionDropout(0.0), nn.Dropout(0.5)])
def test_dropout_switched_off_is_not_flagged(module):
    assert ds.program(module.eval()).check_draws(X[None]) == []


@pytest.mark.parametrize(
    ("function", "codes", "calls"),
    [
        (lambda x: F.dropout(x, 0.25), ["O004"], 4),
        (lambda x: x + 1e-8 * torch.rand_like(x), [], 4),
        (lambda x: F.dropout(x, 0.25, training=False), [], 3),
    ],
)
def test_dropout_is_looked_for_where_runs_draw_random_numbers(function, codes, calls):
    called = []
    record = ds.compare(lambda x: (called.append(0), function(x))[1], lambda x: x * 1.0, X, explain=False)
    assert [f.code for f in record.findings if f.code == "O004"] == codes
    assert len(called) == calls, "twice, once recorded, and once more to see its calls where it draws"


# --- other forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compile", ["eager", "aot_eager", {"backend": "eager", "dynamic": True}])
def test_compiled_programs_run(lookup, lookup_inputs, compile):
    program = ds.torch(lookup, compile=compile)
    assert program.kind == "compiled"
    assert torch.allclose(program(lookup_inputs)["y"], ds.program(lookup)(lookup_inputs)["y"])
    assert program.describe()["compile"]["backend"] in program.runtime
    source = program.lift_source(lookup_inputs)
    assert source.module is lookup


def test_what_torch_compile_made_is_recognised(lookup, lookup_inputs):
    program = ds.program(torch.compile(lookup, backend="eager"))
    assert program.kind == "compiled"
    assert program.module is lookup


@pytest.mark.parametrize(
    ("function", "framework"),
    [
        (np.tanh, "numpy"),
        (lambda x: np.tanh(x), "numpy"),
        (lambda x: torch.tanh(x), "torch"),
        (torch.tanh, "torch"),
        (lambda x: torch.tanh(x) * float(np.pi), "torch"),
        (nn.Tanh(), "torch"),
        (lambda x: x + 1, "torch"),
        (lambda x: MODULE(x) * float(np.pi), "torch"),
        (lambda x: doubled(x), "numpy"),
        (lambda x: again(x), "torch"),
    ],
)
def test_a_functions_library_is_seen(function, framework):
    assert framework_of(function) == framework


def test_annotations_tell_the_library():
    def annotated(x: np.ndarray) -> np.ndarray:
        return x + 1

    assert framework_of(annotated) == "numpy"


def test_numpy_functions_take_and_return_bits():
    seen = {}

    def double(x):
        seen["type"] = type(x)
        x *= 2
        return {"y": x, "n": np.float64(x.sum()), "words": "as they are"}

    x = X.clone()
    result = ds.program(double, framework="numpy")(x)
    assert seen["type"] is np.ndarray
    assert torch.equal(result["y"], 2 * X)
    assert result["n"].dtype == torch.float64
    assert result["words"] == "as they are"
    assert torch.equal(x, X), "the caller's tensor was written"


def test_numpy_refusals_and_missing_graphs():
    program = ds.program(lambda x: np.linalg.inv(x))
    with pytest.raises(ds.RuntimeRefused, match="numpy refused to run the program: LinAlgError"):
        program(X)
    with pytest.raises(CannotLift, match="LinAlgError"):
        lift_bound(program.bind(X))


def test_unknown_and_missing_frameworks_are_said():
    with pytest.raises(ds.ProgramError, match="choose torch, numpy or jax"):
        ds.program(lambda x: x, framework="tensorflow")
    try:
        import jax  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(ds.DependencyMissing, match=r"driftscope\[jax\]"):
            ds.program(lambda x: x, framework="jax")


def test_jax_functions_run_where_jax_is_installed():
    jnp = pytest.importorskip("jax.numpy")
    program = ds.program(lambda x: jnp.tanh(x))
    assert torch.allclose(program(X), X.tanh(), atol=1e-6)
    assert program(X.bfloat16()).dtype == torch.bfloat16
    assert program(X.double()).shape == X.shape, "0 to 5 are exact in 32 bits"
    with pytest.raises(ds.InputError, match="jax_enable_x64"):
        program(X.double() + 0.1)


# --- exported programs ----------------------------------------------------------------------------------------


def test_exported_programs_run_from_memory_and_file(lookup, exported, pt2, lookup_inputs):
    expected = ds.program(lookup)(lookup_inputs)["y"]
    for program in (ds.program(exported), ds.program(pt2), ds.program(str(pt2))):
        assert program.kind == "exported"
        assert torch.equal(program(lookup_inputs)["y"], expected)
        assert torch.equal(program(dict(zip(("ids", "x"), lookup_inputs, strict=True)))["y"], expected)
        assert program.lift_source(lookup_inputs).exported is not None
        assert program()["y"].shape == expected.shape


def test_exported_programs_say_what_does_not_fit(exported, lookup_inputs):
    program = ds.program(exported)
    ids, x = lookup_inputs
    with pytest.raises(ds.InputError, match="fixed size 2 in dimension 0"):
        program((ids[:1], x))
    with pytest.raises(ds.InputError, match="is float32, but float64 was given"):
        program((ids, x.double()))
    with pytest.raises(ds.InputError, match="takes 2 inputs"):
        program((ids,))
    with pytest.raises(ds.InputError, match="has no input 'z'"):
        program({"ids": ids, "z": x})


def test_unused_inputs_of_exports_are_found(exported, lookup_inputs):
    class Ignores(nn.Module):
        def forward(self, x, unused):
            return x + 1

    program = ds.program(torch.export.export(Ignores(), (X, X + 1)))
    assert [(f.code, f.where.output) for f in program.check((X, X))] == [("O002", "in['unused']")]
    assert ds.program(exported).check(lookup_inputs) == []


class Trains(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(x))


@pytest.mark.parametrize(("training", "expected"), [(True, ["O004", "O003"]), (False, [])])
@pytest.mark.parametrize("decomposed", [False, True])
def test_training_left_in_an_export_is_found(training, expected, decomposed):
    exported = torch.export.export(Trains().train(training), (X,))
    exported = exported.run_decompositions() if decomposed else exported
    assert [f.code for f in ds.program(exported).check(X)] == expected


def test_nested_and_constant_inputs_of_exports_fit_as_tree_and_as_leaves():
    class Nested(nn.Module):
        def forward(self, pair, scale: float, *, bias):
            return (pair[0] - pair[1]["b"]) * scale + bias

    args, kwargs = ((X, {"b": 2 * X}), 3.0), {"bias": torch.ones(3)}
    program = ds.program(torch.export.export(Nested(), args, kwargs))
    expected = Nested()(*args, **kwargs)
    assert torch.equal(program({"pair": args[0], "scale": 3.0, "bias": kwargs["bias"]}), expected)
    assert torch.equal(program((X, 2 * X, kwargs["bias"])), expected)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: lambda x: m(x)], ids=["module", "function"])
def test_what_torch_compile_made_runs_on_its_own_backend(wrap):
    seen = []

    def doubling(graph, _examples):
        seen.append(graph)
        return lambda *given: tuple(2 * y for y in graph(*given))

    program = ds.program(torch.compile(wrap(nn.Linear(3, 2)), backend=doubling, dynamic=False))
    given = torch.ones(1, 3)
    once = ds.program(program.function)({"x": given} if program.module is None else {"input": given})
    again = program({"x": given} if program.module is None else {"input": given})
    assert torch.equal(again, 2 * once)
    assert seen
    assert (program.backend, program.compile["dynamic"]) == ("doubling", False)
