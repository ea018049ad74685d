"""``ds.blame``: which optimisation of a runtime, a compiler or an exporter moved a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from driftscope.comparison.leaves import compare_leaves
from driftscope.comparison.measuring.spread import Ratio
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift, InputError
from driftscope.explain.blame.optimisers import SearchBudget, blame_optimizers
from driftscope.explain.locate.targets import Target
from driftscope.lift.evidence import Evidence
from driftscope.lift.noise.floor import floor64_sample
from driftscope.lift.reconcile.certify import reconcile
from driftscope.lift.reconcile.drifts import OutputPairing, measure
from driftscope.lift.side_lift import SideLift, add_noise, lift_side
from driftscope.lift.sources import lift_source
from driftscope.programs.feeding.feeds import make_inputs
from driftscope.programs.feeding.pairing import pair_inputs
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import Bound
from driftscope.programs.state.process import state_kept
from driftscope.programs.value_trees import flatten
from driftscope.records.kinds.left_out import Blame

Progress = Callable[[str], None]


@state_kept()
def blame(
    program: Any,
    inputs: Any = None,
    *,
    reference: Any = None,
    seed: int = 0,
    runs: int = 64,
    progress: Progress | None = None,
) -> Blame:
    """Say which optimisation moved a program's result, by leaving each one out in turn.

    Parameters
    ----------
    program : anything ``ds.program`` accepts
        An ONNX model: the graph optimisers of its onnxruntime session. A compiled module: the stages and settings of
        ``torch.compile``. A module or an exported program: the optimisation of ``torch.onnx.export``.
    inputs : anything ``ds.inputs`` accepts
    reference : anything ``ds.program`` accepts, or None
        What the result should be; None for the same program with nothing optimised (``level="disable"``, or eager).
    seed : int
    runs : int
        Sessions (or compilations) that may be made.
    progress : callable or None
        Told in a few words what happens next.

    Returns
    -------
    Blame
        ``guilty`` are the optimisations without which the result is right, ``paste`` is the line that leaves them
        out, ``suspects`` what each one does to graph and numbers. Nothing is blamed for ordinary rounding.

    Raises
    ------
    InputError
        If nothing optimises this program.
    DriftscopeError
        When a program cannot be loaded or the inputs do not fit it; RuntimeRefused when it does not run.
    """
    say = progress or (lambda _text: None)
    loaded = load_program(program)
    if loaded.kind not in _UNOPTIMISED:
        raise InputError(
            f"{loaded.name} runs on {loaded.runtime}, and nothing optimises it there; "
            "give an ONNX model, ds.torch(module, compile=True), or a torch module to be exported"
        )
    plain = load_program(reference) if reference is not None else loaded.unoptimised()
    made = None if inputs is None else make_inputs(inputs, seed=seed)
    bound_a, bound_b, _ = pair_inputs(plain, loaded, made, seed=seed)
    say("Measuring the reference")
    words = _UNOPTIMISED[loaded.kind] if reference is None else plain.name
    target = standalone_target(bound_a, bound_b, words, seed)
    say("Leaving out what optimises it, one thing at a time")
    return _search(bound_b, target, SearchBudget(runs))


def _search(bound: Bound, target: Target, budget: SearchBudget) -> Blame:
    if bound.program.kind == "compiled":
        from driftscope.explain.blame.compilation import blame_stages

        return blame_stages(bound, target, budget)
    if bound.program.kind in ("torch", "exported"):
        from driftscope.explain.blame.exporting import blame_export

        return blame_export(bound, target)
    return blame_optimizers(bound, target, budget)


_UNOPTIMISED = {
    "onnx": "the same file without optimisation",
    "compiled": "the same program run eagerly",
    "torch": "the module itself",
    "exported": "the exported program itself",
}


def standalone_target(bound_a: Bound, bound_b: Bound, words: str, seed: int) -> Target:
    """Run the reference once and measure what rounding does to both sides."""
    leaves_a, leaves_b = leaves_of(bound_a), leaves_of(bound_b)
    flat = bound_a.program.flat or bound_b.program.flat
    pairs = [
        (leaf.index_a, leaf.index_b)
        for leaf in compare_leaves(leaves_a, leaves_b, flat=flat)
        if leaf.index_a is not None and leaf.index_b is not None
    ]
    side_b = lift_side(bound_b)
    side_a = side_b if bound_a.program.name == bound_b.program.name else lift_side(bound_a)
    add_noise(side_a, seed)
    if side_b is not side_a:
        add_noise(side_b, seed + 1000)
    evidence = Evidence(side_a, side_b, pairs)
    return target_of([value for _, value in leaves_a], evidence, words, function=file_function(side_b, seed))


def leaves_of(bound: Bound) -> list[tuple[Any, Any]]:
    """Run a program once and flatten what it returns."""
    with torch.no_grad():
        leaves, _ = flatten(bound.program(bound))
    return [(path, v.detach() if isinstance(v, torch.Tensor) else v) for path, v in leaves]


def target_of(
    values: Sequence[Any], evidence: Evidence, words: str, function: Callable[[Any], Ratio | None] | None = None
) -> Target:
    """Make a target of A's native values and what the float64 runs measured."""
    wanted, noises = {}, {}
    for pair, (i, j) in enumerate(evidence.pairs):
        if isinstance(values[i], torch.Tensor):
            wanted[j] = values[i]
            noises[j] = [*evidence.noise_a(pair), *(evidence.noise_b(pair) or evidence.noise_a(pair))]
    return Target(wanted, noises, words, function)


def file_function(file: SideLift, seed: int) -> Callable[[Any], Ratio | None] | None:
    """Return what holds a runtime's graph against the file in float64; None where the file cannot be lifted."""
    graph = file.graph
    if graph is None:
        return None
    floor64 = floor64_sample(graph, file.clean, file.noises[0] if file.noises else None, seed=seed)
    pairing = OutputPairing([(k, k) for k in range(len(file.clean))], floor64)

    def worst(source: Any) -> Ratio | None:
        try:
            other = lift_source(source)
            outputs = other.run()
            drifts = measure(file.clean, outputs, pairing, THRESHOLDS)
            if any(d.value > d.limit for d in drifts):
                drifts = reconcile(graph, other, (file.clean, outputs), pairing, THRESHOLDS).drifts
        except (CannotLift, RuntimeError, NotImplementedError, TypeError, ValueError, LookupError, AttributeError):
            return None  # what cannot be lifted is judged by its numbers alone
        return max(drifts, key=lambda d: d.value / d.limit if d.limit else d.value, default=None)

    return worst
