"""State as it was: after every public function the process and the models are as before, in threads too."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import torch
import torch._inductor.config  # deterministic algorithms import it when first set, and its import adds warnings filters
from onnx import TensorProto, helper

import driftscope as ds
from driftscope import testing
from driftscope.programs.state import modules, process

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def snapshot(module: torch.nn.Module | None = None) -> dict[str, object]:
    """Everything a caller could notice, read with other code than the one under test."""
    state = {
        "dtype": torch.get_default_dtype(), "device": str(torch.get_default_device()), "cwd": os.getcwd(),
        "environ": dict(os.environ), "python": random.getstate(), "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(), "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "grad": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(), "autocast": torch.is_autocast_enabled("cpu"),
        "filters": [str(f) for f in warnings.filters], "root": logging.root.level,
        "levels": {n: logging.getLogger(n).level for n in ("torch", "torch.onnx", "torch._dynamo", "onnxscript")},
        "off": logging.root.manager.disable, "errors": np.geterr(), "gc": gc.isenabled(),
        "denormals": float(torch.tensor(1e-310, dtype=torch.float64, device="cpu") * 1.0),
    }  # fmt: skip
    if module is not None:
        state["modes"] = [m.training for m in module.modules()]
        state["tensors"] = {n: t.tolist() for n, t in module.state_dict().items()}
        state["grads"] = [p.grad is None for p in module.parameters()]
        state["hooks"] = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in module.modules()]
    return state


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return [name for name in before if before[name] != after[name]]


class Counting(torch.nn.Module):
    """BatchNorm in train mode, a counter, and a gradient taken on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(self.norm(x)) + 0 * self.calls


def make_onnx() -> onnx.ModelProto:
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [given], [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _reproducibly(module: torch.nn.Module) -> None:
    with ds.reproducible():
        module(X)


CALLS = {
    "compare": lambda m: ds.compare(m, lambda x: m(x) * 1.0, X),
    "compare another function": lambda m: ds.compare(m, lambda x: m(x) + 0.5, X),
    "compare onnx": lambda m: ds.compare(torch.relu, make_onnx(), X),
    "compare_all": lambda m: ds.compare_all({"a": m, "b": lambda x: m(x)}, X),
    "check_shapes": lambda m: ds.check_shapes(m, X, targets=()),
    "check_transforms": lambda m: ds.check_transforms(lambda x: x.sin().sum(), X, transforms=("vmap", "grad")),
    "check_invariance": lambda m: ds.check_invariance(m, X),
    "vmap": lambda m: ds.vmap(torch.sin)(X),
    "cover": lambda m: ds.cover(m.linear, X),
    "reveal": lambda m: ds.reveal("torch.sum", 16, threads=1),
    "check_half": lambda m: ds.check_half(m, X, dtype="float16"),
    "blame": lambda m: ds.blame(make_onnx(), X),
    "study": lambda m: ds.studies.reduction(functions="torch.sum", sizes=8, dtypes="float32", permutations=4),
    "exact": lambda m: ds.exact.sum(X),
    "max_diff": lambda m: ds.max_diff(X, X + 1),
    "pretty": lambda m: ds.pretty(make_onnx()),
    "assert_same": lambda m: testing.assert_same(m, m, X),
    "assert_close": lambda m: testing.assert_close(X, X.clone()),
    "assert_transforms": lambda m: testing.assert_transforms(torch.sin, X, transforms=("vmap",)),
    "assert_invariant": lambda m: testing.assert_invariant(m.linear, X, axes=("repeat",)),
    "compare_values": lambda m: ds.compare_values({"y": X}, {"y": X + 1e-3}),
    "recorded": lambda m: ds.compare(ds.recorded({"y": X}), ds.recorded({"y": X})),
    "inputs": lambda m: ds.inputs({"x": "4x3:float32"}, seed=3).realise(),
    "program": lambda m: ds.program(m)(X),
    "onnx": lambda m: ds.onnx(make_onnx())({"x": X}),
    "torch": lambda m: ds.torch(m, dtype="float64")(X),
    "reproducible": lambda m: _reproducibly(m.linear),
}
SLOW = {"cover", "check_half", "check_shapes", "blame", "study", "check_transforms", "check_invariance", "pretty",
        "assert_transforms", "assert_invariant", "reproducible"}  # fmt: skip


def test_every_public_function_is_asked():
    public = {n for n in ds.__all__ if callable(getattr(ds, n)) and not isinstance(getattr(ds, n), type)}
    public |= {n for n in vars(testing) if n.startswith("assert_")}
    assert public - {name.split()[0] for name in CALLS} == set()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in CALLS])
def test_the_process_and_the_model_are_as_they_were(name):
    model = Counting()
    CALLS[name](model)  # what is imported for the first time is not what is asked here
    given = X.clone()
    before = snapshot(model)
    CALLS[name](model)
    assert changed(before, snapshot(model)) == []
    assert torch.equal(given, X)


@contextlib.contextmanager
def leaking(setting):
    kept = process.readings()
    try:
        yield setting()
    finally:
        process.put_back(kept)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "dtype"),
        (lambda: torch.set_default_device("meta"), "device"),
        (lambda: os.chdir("/"), "cwd"),
        (lambda: os.environ.update(DRIFTSCOPE_LEAK="1"), "environ"),
        (lambda: np.random.seed(1), "numpy"),
        (lambda: random.random(), "python"),
        (lambda: torch.manual_seed(11), "torch"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic"),
        (lambda: torch.set_float32_matmul_precision("medium"), "precision"),
        (lambda: torch._C._set_grad_enabled(False), "grad"),
        (lambda: torch.set_autocast_enabled("cpu", True), "autocast"),
        (lambda: np.seterr(all="raise"), "errors"),
        (gc.disable, "gc"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_the_harness_notices_a_leak_and_the_keeper_stops_it(setting, named):
    before = snapshot()
    with leaking(setting):
        assert named in changed(before, snapshot())
    assert changed(before, snapshot()) == []
    with process.state_kept():
        setting()
    assert changed(before, snapshot()) == []


def test_a_leaking_hook_and_buffer_are_noticed():
    model = Counting()
    before = snapshot(model)
    model(X)
    model.linear.register_forward_hook(lambda *_: None)
    model.eval()
    assert changed(before, snapshot(model)) == ["modes", "tensors", "hooks"]


def test_threads_give_the_serial_verdicts_and_leave_the_default_dtype():
    linear = torch.nn.Linear(3, 2)

    def added(x):
        return torch.zeros(4, 2) + x @ linear.weight.T + linear.bias

    pairs = [
        (linear, added),
        (linear, lambda x: added(x) * 1.01),
        (torch.softmax, torch.softmax),
        (make_onnx(), torch.relu),
    ]
    tasks = [(a, b, (X, 1) if a is torch.softmax else X) for a, b in pairs] * 2
    serial = [ds.compare(*task).verdict for task in tasks]
    before = snapshot(linear)
    with ThreadPoolExecutor(8) as pool:
        threaded = [c.verdict for c in pool.map(lambda task: ds.compare(*task), tasks)]
    assert threaded == serial
    assert "DIFFERENT" in serial
    assert changed(before, snapshot(linear)) == []


def test_threads_that_call_different_functions_leave_the_process_as_it_was():
    model = Counting()
    quick = sorted(set(CALLS) - SLOW)
    for name in quick:
        CALLS[name](model)
    before = snapshot(model)
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(CALLS[name], model) for name in quick * 2]:
            future.result()
    assert changed(before, snapshot(model)) == []


def test_a_native_run_never_sees_the_float64_of_a_lift_in_another_thread():
    seen, stop = set(), threading.Event()
    program = ds.program(lambda x: x + torch.zeros(()))

    def run():
        while not stop.is_set():
            seen.add(program(X).dtype)

    thread = threading.Thread(target=run)
    thread.start()
    ds.compare(lambda x: x.sin() + 1, lambda x: x.sin() + 1, X)
    stop.set()
    thread.join()
    assert seen == {torch.float32}


# --- what a user's program changes -----------------------------------------------------------------------------


def rude(x):
    torch.set_default_dtype(torch.float64)
    os.chdir("/")
    np.random.seed(86420)
    os.environ["RUDE"] = "1"
    return x * 1


def noted(record, side):
    return [f.evidence["changed"] for f in record.findings if f.code == "O021" and f.evidence["side"] == side]


def test_what_a_program_sets_is_put_back_and_said_once():
    before = snapshot()
    record = ds.compare(rude, lambda x: x * 1, X)
    assert changed(before, snapshot()) == []
    (said,) = noted(record, "A")
    assert {"torch's default dtype", "the working folder", "the environment variable RUDE",
            "the state of numpy.random"} <= set(said)  # fmt: skip
    assert noted(record, "B") == []
    assert record.verdict == "IDENTICAL"


def test_a_counter_and_running_statistics_are_put_back_and_said():
    model = Counting()
    before = snapshot(model)
    record = ds.compare(model, model, X)
    assert record.verdict == "IDENTICAL"
    assert changed(before, snapshot(model)) == []
    assert noted(record, "A") == [["buffer calls", "buffer norm.running_mean", "buffer norm.running_var",
                                   "buffer norm.num_batches_tracked"]]  # fmt: skip


class Drifting(torch.nn.Module):
    """Weights of 17 MiB, of which a forward pass changes one; what it gives does not depend on that one."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.nn.Parameter(torch.zeros(17 << 18))
        self.small = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        with torch.no_grad():
            self.large[1] += 1
        return x * self.small + self.large[:3].sum()


@pytest.mark.parametrize("room", [1.0, 0.0])
def test_a_large_parameter_is_put_back_where_there_is_room_for_a_copy(monkeypatch, room):
    monkeypatch.setattr(modules, "_ROOM", room)
    model = Drifting()
    record = ds.compare(model, lambda x: x * 1, X, explain=False)
    (said,) = noted(record, "A")
    assert said == ["parameter large" + ("" if room else " (too large to be put back)")]
    assert (float(model.large[1]) == 0) is bool(room)
    assert len(modules._COPIES) == 0


class Late(torch.nn.Module):
    """Writes past torch's version counter, from its second call on."""

    def __init__(self, way):
        super().__init__()
        self.scale, self.way = torch.nn.Parameter(torch.ones(3)), way
        self.calls = iter(range(100))  # which goes on where an attribute would be put back

    def forward(self, x):
        late = next(self.calls) > 0
        if late and self.way == "written":
            self.scale.data.mul_(2.0)
        elif late and self.way == "exchanged":
            self.scale.data = torch.full((3,), 2.0)
        return x * self.scale


@pytest.mark.parametrize("way", ["written", "exchanged", "left"])
def test_one_copy_serves_all_runs_and_sees_what_no_counter_counts(way):
    model = Late(way)
    program = ds.program(model)
    bound = program.bind(X)
    with process.state_kept():
        assert torch.equal(program(bound), X)
        held = modules._COPIES.get(model.scale)
        assert held is not None
        assert not torch.equal(program(bound), X) or way == "left"
        assert torch.equal(model.scale, torch.ones(3))
        assert torch.equal(modules._COPIES.get(model.scale)[1], torch.ones(3))
        # What others write between two runs is theirs, and no change of the program.
        model.way = "left"
        model.scale.data = torch.full((3,), 5.0)
        assert torch.equal(program(bound), 5.0 * X)
        assert torch.equal(model.scale, torch.full((3,), 5.0))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_many_comparisons_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def held() -> tuple[int, int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(os.listdir(tmp_path))

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for turn in range(230):
        if turn == 30:  # libraries load and fill their caches in the first
            before, size = held(), resident()
        b = (torch.nn.ReLU(), onnx_model, lambda x: torch.relu(x) * 1.001)[turn % 3]
        ds.compare(torch.relu, b, X, explain=turn % 30 == 2)
    assert held() == before
    assert resident() - size < 20 << 20


@pytest.mark.parametrize("quiet", [torch.nn.Linear(3, 2), torch.nn.Dropout(0.5), torch.nn.GRU(3, 4)])
def test_a_program_that_only_computes_or_draws_is_not_reported(quiet):
    assert noted(ds.compare(quiet, quiet, X), "A") == []


def test_a_buffer_that_is_returned_keeps_the_value_it_was_returned_with():
    class Returning(Counting):
        def forward(self, x):
            self.calls += 5
            return self.calls

    model = Returning()
    assert float(ds.program(model)(X)) == 5.0
    assert float(model.calls) == 0.0


def test_a_gradient_taken_inside_does_not_stay():
    model = Counting()

    def differentiated(x):
        with torch.enable_grad():
            model(x).sum().backward()
        return model.linear.weight.grad.clone()

    record = ds.compare(differentiated, differentiated, X)
    assert all(p.grad is None for p in model.parameters())
    assert "the gradient of linear.weight" in noted(record, "A")[0]


class Mine(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), Mine("x"), asyncio.CancelledError()])
@pytest.mark.parametrize("side", ["A", "B"])
def test_whatever_a_program_raises_is_a_finding_about_its_side(error, side):
    def raising(x):
        raise error

    programs = (raising, torch.sin) if side == "A" else (torch.sin, raising)
    record = ds.compare(*programs, X)
    assert (record.verdict, record.first.code, record.first.evidence["side"]) == ("INCONCLUSIVE", "R002", side)


def test_an_interrupt_from_outside_is_not_the_programs():
    import signal

    def waiting(x):
        signal.raise_signal(signal.SIGINT)
        return x

    # A shell starts background jobs with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ds.compare(waiting, torch.sin, X)
    finally:
        signal.signal(signal.SIGINT, before)
