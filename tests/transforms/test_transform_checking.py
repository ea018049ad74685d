"""``check_transforms`` on what it should refuse, on what cannot be judged, and what it leaves behind."""

from __future__ import annotations

import random
import sys
import threading
import time

import numpy as np
import pytest
import torch

import driftscope as ds
from driftscope.errors import InputError
from driftscope.records.kinds.transform_report import TransformReport
from driftscope.transforms import investigation
from driftscope.transforms.world.process_state import reading, same_reading

X = torch.arange(12.0, dtype=torch.float64).reshape(3, 4) / 7 - 0.6


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ds.check_transforms(3, X), "needs a function"),
        (lambda: ds.check_transforms(torch.sin), "at least one tensor"),
        (lambda: ds.check_transforms(torch.sin, X, transforms=("vmpa",)), "did you mean vmap"),
        (lambda: ds.check_transforms(torch.sin, X, transforms=("vmap[chunks=1]",)), "chunk_size"),
        (lambda: ds.check_transforms(torch.sin, X, transforms=()), "at least one"),
        (lambda: ds.check_transforms(torch.sin, X, randomness="often"), "randomness is one of"),
        (lambda: ds.check_transforms(torch.add, X, X, in_dims=(0,)), "1 entry for 2"),
        (lambda: ds.check_transforms(torch.sin, X, in_dims=5), "axis 5"),
        (lambda: ds.check_transforms(torch.sin, X, in_dims=(None,)), "no example has a mapped axis"),
        (lambda: ds.check_transforms(torch.add, X, X[:2]), "different sizes"),
        (lambda: ds.check_transforms(torch.sin, X[:0]), "empty"),
    ],
)
def test_misuse_is_one_clear_sentence(call, words):
    with pytest.raises(InputError, match=words) as told:
        call()
    assert "\n" not in str(told.value)


def test_a_function_that_raises_by_itself_is_said_to():
    def f(x):
        return x @ torch.ones(9, dtype=x.dtype)

    report = ds.check_transforms(f, X, transforms=("vmap", "grad"))
    assert set(report.outcomes.values()) == {"plain-refuses"}
    assert {found.cause for found in report.findings} == {"T031"}
    assert report.first.where.expression == "x @ torch.ones(9, dtype=x.dtype)"


def test_a_device_that_is_not_there_is_said_by_the_function_itself():
    def f(x):
        return x.to("cuda:7") + 1

    report = ds.check_transforms(f, X, transforms=("vmap",))
    assert report.first.cause == "T031"
    assert report.first.where.expression == 'x.to("cuda:7")'


@pytest.mark.parametrize("swallows", [False, True])
def test_a_function_that_never_returns_is_stopped(swallows):
    def f(x):
        while True:
            try:
                x = x + 0
            except Exception:
                if not swallows:
                    raise

    report = ds.check_transforms(f, X, transforms=("vmap",), time_limit=0.4)
    assert report.outcomes["vmap"] == "plain-refuses"
    assert report.first.cause == "T032"


def _busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class _Lingering:
    """An object whose destructor takes its time: an alarm that rings there is swallowed by Python."""

    def __del__(self):
        _busy(0.6)


def _in_a_thread(ask):
    found = []
    asking = threading.Thread(target=lambda: found.append(ask()))
    asking.start()
    asking.join(30)
    return found[0]


ASKED = [pytest.param(lambda ask: ask(), id="main thread"), pytest.param(_in_a_thread, id="another thread")]


@pytest.mark.parametrize("asked", ASKED)
def test_an_alarm_swallowed_by_a_destructor_is_no_error_of_the_program(monkeypatch, asked):
    def f(x):
        while True:
            _Lingering()
            _busy(0.3)

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    kept = sys.unraisablehook
    report = asked(lambda: ds.check_transforms(f, X, transforms=("vmap",), time_limit=0.4))
    assert (report.first.cause, reported) == ("T032", [])
    assert sys.unraisablehook == kept


@pytest.mark.parametrize("asked", ASKED)
def test_the_report_of_another_exception_is_not_interrupted(monkeypatch, asked):
    class Failing:
        def __del__(self):
            raise ValueError("mine")

    def f(x):
        while True:
            Failing()
            _busy(0.3)

    begun, ended = [], []

    def slowly(unraisable):
        begun.append(unraisable.exc_type)
        _busy(0.6)
        ended.append(unraisable.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", slowly)
    report = asked(lambda: ds.check_transforms(f, X, transforms=("vmap",), time_limit=0.4))
    assert report.first.cause == "T032"
    assert begun == ended
    assert set(begun) == {ValueError}


def test_a_function_is_stopped_in_another_thread_too():
    def f(x):
        while True:
            x = x + 0

    report = _in_a_thread(lambda: ds.check_transforms(f, X, transforms=("vmap",), time_limit=0.4))
    assert report.first.cause == "T032"


def test_a_function_built_in_c_is_checked_and_said_to_have_no_source():
    report = ds.check_transforms(torch.sin, X)
    assert report.worst in ("same", "rounding")
    assert [f.cause for f in report.findings] == ["T034"]
    assert report.first.note


def test_a_running_generator_is_named():
    def numbers():
        while True:
            yield 1.5

    running = numbers()

    def f(x):
        return x * next(running)

    report = ds.check_transforms(f, X, transforms=("vmap",))
    assert "`running`" in next(f.what for f in report.findings if f.cause == "T033")


def test_written_arguments_are_noted_and_the_callers_are_untouched():
    def f(x):
        x.mul_(2)
        return x + 1

    kept = X.clone()
    report = ds.check_transforms(f, X, transforms=("vmap",))
    assert torch.equal(kept, X)
    assert report.outcomes["vmap"] == "same"
    assert [(found.cause, found.note) for found in report.findings] == [("T035", True)]


def test_functions_typed_in_a_notebook_or_executed_are_placed():
    source = "def f(x):\n    y = x * 2\n    return y if y.sum() > 0 else x\n"
    import linecache

    name = "<ipython-input-7-cell>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict = {}
    exec(compile(source, name, "exec"), space)  # noqa: S102
    report = ds.check_transforms(space["f"], X, transforms=("vmap",))
    assert (report.first.where.line, report.first.where.expression) == (3, "y.sum() > 0")


def test_functions_without_source_keep_their_line():
    space: dict = {}
    exec(compile("\n\ndef f(x):\n    return x if x.sum() > 0 else -x\n", "<string>", "exec"), space)  # noqa: S102
    report = ds.check_transforms(space["f"], X, transforms=("vmap",))
    assert report.outcomes["vmap"] == "refused"
    assert report.first.cause == "T009"
    assert report.first.where.line == 4


def test_any_batch_is_checked_with_three_examples():
    seen = []

    def f(x):
        seen.append(1)
        return x

    report = ds.check_transforms(f, torch.zeros(500, 2), transforms=("vmap",))
    assert report.inputs["size"] == 3
    assert seen == []


def test_other_mapped_axes_and_arguments_of_any_kind_are_taken():
    def f(weights, x, power, names):
        return (weights["w"] * x).sum() ** power + len(names)

    weights = {"w": torch.ones(4, dtype=torch.float64), "unused": torch.ones(1)}
    report = ds.check_transforms(f, weights, X.t(), 2, ["a", "b"], in_dims=(None, 1, None, None))
    assert set(report.outcomes.values()) <= {"same", "rounding"}
    assert [f for f in report.findings if not f.note] == []


def test_the_report_is_whole_and_reads_back():
    report = ds.check_transforms(lambda x: x * float(x.sum()), X, transforms=("vmap", "vmap(grad)"))
    assert list(report.outcomes) == ["vmap", "vmap(grad)"]
    assert [run.transform for run in report.runs] == ["vmap", "vmap(grad)"]
    assert all(run.message for run in report.runs)
    assert TransformReport.from_dict(report.to_dict()) == report
    first = report.first
    assert first.transforms == ("vmap", "vmap(grad)")
    assert "mapped over 3 examples" in first.what
    assert first.where.expression == "float(x.sum())"


def test_the_same_question_has_the_same_answer():
    def f(x):
        return x + torch.randn(4, dtype=x.dtype) if x.dim() else x

    one, two = (ds.check_transforms(f, X, transforms=("vmap_different", "grad")).to_dict() for _ in range(2))
    for record in (one, two):
        record.pop("times")
    assert one == two


def changes_everything(x):
    random.random()
    np.random.rand()
    torch.rand(1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_printoptions(precision=2)
    torch.autograd.set_detect_anomaly(True)
    raise RuntimeError("after changing everything")


@pytest.mark.parametrize("transforms", [("vmap", "jacfwd"), ("compile_eager", "export")])
def test_the_process_is_as_it_was(transforms):
    before = reading()
    ds.check_transforms(changes_everything, X, transforms=transforms)
    assert same_reading(before, reading()) == []
    torch.vmap(torch.sin)(X)


def test_a_reading_sees_what_it_should():
    before = reading()
    torch.rand(1)
    assert same_reading(before, reading()) == ["the state of torch's random generator"]


@pytest.mark.slow
def test_a_level_that_torch_leaves_open_is_closed():
    # torch 2.13: exporting this strictly fails with a forward-mode level open, and every later jvp is refused.
    def f(x):
        return torch.autograd.functional.hessian(lambda z: z.pow(3).sum(), x).diagonal()

    before = reading()
    assert ds.check_transforms(f, X, transforms=("export_strict",)).outcomes == {"export_strict": "refused"}
    assert same_reading(before, reading()) == []
    torch.func.jvp(torch.sin, (X,), (X,))


def test_chunks_are_compared_chunk_by_chunk():
    table = torch.ones(2, 3, dtype=torch.float64)

    def f(v):
        w = v * 2
        return torch.index_fill(table, 0, torch.tensor([1]), w)

    batch = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    report = ds.check_transforms(f, batch, transforms=("vmap[chunk_size=2]", "vmap[chunk_size=1]"))
    assert report.outcomes == {"vmap[chunk_size=2]": "wrong", "vmap[chunk_size=1]": "same"}
    assert {f.cause for f in report.findings} == {"T028"}
    assert all("index_fill" in f.where.expression for f in report.findings)


def test_a_compiler_around_a_wrong_rule_does_not_hide_it():
    base = torch.arange(4, dtype=torch.float32)

    def f(s):
        return torch.where(base > 1, base, s)

    report = ds.check_transforms(f, X[:, 0], transforms=("compile(vmap)",))
    assert report.outcomes == {"compile(vmap)": "wrong"}
    assert [(found.cause, found.where.expression) for found in report.findings] == [
        ("T018", "torch.where(base > 1, base, s)")
    ]


def test_what_the_jacobians_refuse_to_return_is_refused_in_words():
    for extra in (None, "a name"):
        report = ds.check_transforms(lambda x, e=extra: (x.sum(), e), X, transforms=("jacrev", "jacfwd", "vjp"))
        assert set(report.outcomes.values()) == {"refused"}
        assert {finding.code for finding in report.findings if not finding.note} == {"T017"}
        assert all(finding.where.line for finding in report.findings if not finding.note)
    report = ds.check_transforms(lambda x: (x.sum(), x), X, transforms=("jacrev", "jacfwd", "vjp"))
    assert set(report.outcomes.values()) <= {"same", "rounding"}


def test_autograd_inside_is_told_once_for_all_transforms():
    def f(x):
        y = x.detach().requires_grad_()
        return torch.autograd.grad((y**3).sum(), y)[0]

    report = ds.check_transforms(f, X, transforms=("vmap", "grad", "jacrev"))
    (finding,) = (finding for finding in report.findings if finding.code == "T012")
    assert set(finding.transforms) == {"vmap", "grad", "jacrev"}
    assert "has shape" not in finding.what


def test_randomness_that_was_given_is_not_advised_again():
    def f(x):
        return x * torch.rand(())

    report = ds.check_transforms(f, X, transforms=("vmap", "jacfwd", "hessian"), randomness="same")
    told = {finding.transform: finding.fix for finding in report.findings if finding.code == "T005"}
    assert "to vmap" not in told["vmap"]
    assert "torch.func.jacfwd" in told["jacfwd"]
    assert "torch.func.hessian takes no randomness" in told["hessian"]


def test_a_check_of_a_memoising_function_makes_one_check(monkeypatch):
    memo = {}

    def f(x):
        key = round(x[0].item(), 3)
        if key not in memo:
            memo[key] = 1.0
        return x * memo[key]

    made = []
    real = investigation.Investigation.fill
    monkeypatch.setattr(investigation.Investigation, "fill", lambda self: made.append(1) or real(self))
    report = ds.check_transforms(f, X, transforms=("vmap",))
    assert len(made) <= 2, "the check asked ds.vmap, which asked the check"
    assert all(finding.where.line for finding in report.findings)


@pytest.mark.parametrize("transforms", [("grad",), ("vmap", "jvp")])
def test_a_memo_that_is_filled_whatever_the_transform_is_noted(transforms):
    memo = {}

    def f(x):
        if len(x) not in memo:
            memo[len(x)] = 0.5
        return x * memo[len(x)]

    report = ds.check_transforms(f, X, transforms=transforms)
    (finding,) = report.findings
    assert (finding.code, finding.note) == ("T035", True)
    assert "`memo`" in finding.what
    assert "memo[len(x)]" in finding.where.expression
    assert not memo
    twin = ds.check_transforms(lambda x: x * {4: 0.5}[len(x)], X, transforms=transforms)
    assert not twin.findings


def test_a_derivative_that_is_zero_but_for_rounding_is_no_drift():
    def standardised(x):
        return (x - x.mean()) / x.std()

    report = ds.check_transforms(standardised, X.float() + 0.3 * X.float() ** 2, transforms=("grad", "hessian"))
    assert set(report.outcomes.values()) <= {"same", "rounding"}
    assert not report.findings


def test_what_a_half_format_inside_rounds_is_no_drift():
    report = ds.check_transforms(lambda x: x.half().float().sum(), X.float(), transforms=("jvp", "jacfwd"))
    assert set(report.outcomes.values()) <= {"same", "rounding"}


def test_a_small_slope_that_is_wrong_is_not_taken_for_rounding():
    class Slanted(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, slope):
            return slope * ctx.saved_tensors[0].cos()

        @staticmethod
        def jvp(ctx, tangent):
            return tangent * ctx.saved_tensors[0].cos() * 1.0002

    report = ds.check_transforms(lambda x: Slanted.apply(x), X.float(), transforms=("jvp",))
    assert report.outcomes == {"jvp": "wrong"}


def test_every_finding_has_a_line_and_an_expression():
    def f(x):
        with torch.no_grad():
            m = x.mean()
            s = x.std()
        return (x - m) / s * float(x.sum())

    report = ds.check_transforms(f, X)
    assert report.findings
    for finding in report.findings:
        assert finding.where.line
        assert finding.where.expression
        assert "m = x.mean()" not in finding.where.expression, "a block is no expression"


def test_a_gradient_beside_values_that_are_read_later_keeps_them():
    def f(x):
        y = x.detach().requires_grad_()
        aux = y * 2
        loss = (aux**2).sum()
        (g,) = torch.autograd.grad(loss, y)
        return g, aux.detach()

    (finding,) = (f for f in ds.check_transforms(f, X, transforms=("vmap",)).findings if not f.note)
    assert finding.verified
    assert "has_aux=True" in finding.patch
    assert "return loss, (aux,)" in finding.patch


def test_one_example_where_a_batch_is_wanted_is_told_from_a_function_that_fails():
    def gaps(x):
        return x.sort().values.diff()

    alone = ds.check_transforms(gaps, torch.randn(5))
    assert "on the arguments as given it runs" in alone.first.what
    assert "x.unsqueeze(0)" in alone.first.fix
    assert ds.check_transforms(gaps, torch.randn(5).unsqueeze(0)).outcomes["vmap"] == "same"

    def broken(x):
        return x.sort().values.diff() @ torch.ones(99)

    told = ds.check_transforms(broken, torch.randn(5))
    assert "by itself" in told.first.what
    assert told.first.fix == "mend the function first"


def _determinants(x):
    """Zero in real numbers; its derivative is the difference of numbers ten thousand times as large as itself."""
    a = x.reshape(8, 8)
    return torch.linalg.det(a @ a.T) - torch.linalg.det(a) ** 2


def _peaks(x):
    h = x @ torch.linspace(-8, 8, 256).sin().reshape(16, 16) * 100
    return (h.logsumexp(-1) - h.amax(-1)) * 1e3


class _HalfGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * (1 + 1e-3)


@pytest.mark.parametrize(("function", "size"), [(_determinants, 64), (_peaks, 16)], ids=["determinants", "peaks"])
def test_what_a_cancelling_derivative_loses_is_rounding(function, size):
    x = torch.randn(4, size, generator=torch.Generator().manual_seed(0))
    report = ds.check_transforms(function, x, transforms=("grad", "jacfwd", "vmap(grad)"))
    assert set(report.outcomes.values()) <= {"same", "rounding"}, report


def test_a_tangent_that_is_off_by_little_is_still_wrong():
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    report = ds.check_transforms(lambda x: _HalfGradient.apply(x).square().sum(), x, transforms=("jacfwd",))
    assert report.outcomes["jacfwd"] == "wrong"
