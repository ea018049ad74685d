"""Check the user-like functions and hold every answer against torch itself: outcomes, places, patches, seconds.

``python -m transforms.users.measuring [names]`` in ``tests/`` prints what falls short and the percentages. The truth
is computed here by plain loops and plain autograd, with nothing of ``driftscope.transforms``.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import io
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

import driftscope as ds
from transforms.users.cases import BATCH, CASES, UserCase

TRANSFORMS = ("vmap", "grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian")
MODULES = ("losses", "science", "models", "habits", "paths", "practice")
RIGHT = ("same", "rounding")
FRESH = 4


@dataclass
class Score:
    """Counts over all functions, and words about what falls short."""

    outcomes: int = 0
    right_outcomes: int = 0
    places: int = 0
    right_places: int = 0
    patches: int = 0
    right_patches: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def share(right: int, of: int) -> str:
            return f"{right}/{of} ({100 * right / max(of, 1):.1f} %)"

        slowest = sorted(self.seconds, key=lambda name: -self.seconds[name])[:5]
        return (
            f"outcomes {share(self.right_outcomes, self.outcomes)}  places {share(self.right_places, self.places)}"
            f"  verified fixes {share(self.right_patches, self.patches)}"
            f"  median check {statistics.median(self.seconds.values()):.3f} s, slowest "
            + ", ".join(f"{name} {self.seconds[name]:.2f} s" for name in slowest)
        )


# ---- the truth -----------------------------------------------------------------------------------------------------


def rows_of(batch: tuple[Any, ...], in_dims: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the examples of a batch, as a loop passes them."""
    return [tuple(a if d is None else a[i] for a, d in zip(batch, in_dims, strict=True)) for i in range(BATCH)]


def copied(tree: Any) -> Any:
    """Return a copy of every tensor of a tree."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def floats_of(tree: Any) -> list[torch.Tensor]:
    """Return what can be differentiated of outputs; whole numbers where nothing else is there."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    real = [leaf for leaf in tensors if leaf.is_floating_point()]
    if not tensors:
        raise TypeError("no tensor is returned")
    return real or [leaf.double() for leaf in tensors]


def summed(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return the sum of all outputs as one function."""
    return lambda *args: torch.stack([leaf.sum().double() for leaf in floats_of(function(*args))]).sum()


def tensors_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the differentiable outputs, or the outputs as they are where torch refuses what they hold."""

    def outputs(*args: Any) -> Any:
        tree = function(*args)
        if not all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(tree)):
            return tree
        return tuple(floats_of(tree))

    return outputs


def lifted(function: Callable[..., Any], transform: str, batch: tuple[Any, ...], case: UserCase) -> Any:
    """Return what the transform gives."""
    if transform == "vmap":
        return torch.vmap(function, case.in_dims, randomness=case.randomness)(*batch)
    first, *rest = rows_of(batch, case.in_dims)[0]
    if transform == "grad":
        return torch.func.grad(summed(function))(first, *rest)
    if transform == "hessian":
        return torch.func.hessian(summed(function))(first, *rest)
    one = lambda x: tensors_alone(function)(x, *rest)  # noqa: E731
    if transform == "jvp":
        return torch.func.jvp(one, (first,), (torch.ones_like(first),))[1]
    if transform == "vjp":
        out, pull = torch.func.vjp(one, first)
        return pull(tree_map(torch.ones_like, out))[0]
    return getattr(torch.func, transform)(tensors_alone(function))(first, *rest)


def plain(
    function: Callable[..., Any], transform: str, batch: tuple[Any, ...], case: UserCase, *, through: bool = False
) -> Any:
    """Return what loops and plain autograd give; ``through`` hands the function a tensor that it may write to."""
    if transform == "vmap":
        found = [function(*row) for row in rows_of(batch, case.in_dims)]
        flat = [tree_flatten(one) for one in found]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        return [_stacked(c) if isinstance(c[0], (torch.Tensor, int, float)) else list(c) for c in columns]
    first, *rest = rows_of(batch, case.in_dims)[0]
    leaf = first.detach().requires_grad_()
    x = leaf * 1.0 if through else leaf
    if transform in ("grad", "vjp"):
        return pulled(summed(function)(x, *rest), leaf)
    if transform == "hessian":
        slope = pulled(summed(function)(x, *rest), leaf, keep=True)
        return jacobian(slope, leaf)
    blocks = [jacobian(out, leaf) for out in floats_of(function(x, *rest))]
    if transform == "jvp":
        return [block.flatten(block.dim() - x.dim()).sum(-1) if x.dim() else block for block in blocks]
    return blocks


def _stacked(column: tuple[Any, ...]) -> torch.Tensor:
    return torch.stack([torch.as_tensor(value) for value in column])


def pulled(out: torch.Tensor, x: torch.Tensor, *, keep: bool = False) -> torch.Tensor:
    """Return the gradient of a number, zeros where it does not depend on ``x``."""
    if not out.requires_grad:
        return torch.zeros_like(x)
    (g,) = torch.autograd.grad(out, x, create_graph=keep, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if g is None else g


def jacobian(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the derivative of each element, one backward run each."""
    rows = [pulled(element, x) for element in out.reshape(-1)]
    return torch.stack(rows).reshape((*out.shape, *x.shape)) if rows else x.new_zeros((*out.shape, *x.shape))


def quietly(run: Callable[[], Any]) -> Any:
    """Return the answer or the exception, from the same seeds, printing nothing."""
    torch.manual_seed(0)
    np.random.seed(0)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return run()
    except Exception as error:
        return error


def agree(one: Any, other: Any) -> bool:
    """Whether two answers are the same up to rounding."""
    a, b = (_numbers(tree) for tree in (one, other))
    if len(a) != len(b):
        return False
    return all(
        p.shape == q.shape and torch.allclose(p, q, 1e-4, 1e-5, equal_nan=True) for p, q in zip(a, b, strict=True)
    )


def _numbers(tree: Any) -> list[torch.Tensor]:
    leaves = [torch.as_tensor(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, (torch.Tensor, int, float))]
    return [(torch.view_as_real(t) if t.is_complex() else t).detach().double() for t in leaves]


def truth(function: Any, transform: str, batch: tuple[Any, ...], case: UserCase, *, through: bool = False) -> str:
    """Return same, wrong, refused or plain-refuses."""
    # Copies, since a module that keeps what it saw would keep the transform's own tensors; functions copy as they are.
    expected = quietly(lambda: plain(copy.deepcopy(function), transform, copied(batch), case, through=through))
    got = quietly(lambda: lifted(copy.deepcopy(function), transform, copied(batch), case))
    if isinstance(got, Exception):
        return "plain-refuses" if isinstance(expected, Exception) else "refused"
    if isinstance(expected, Exception):
        return "plain-refuses"
    return "same" if agree(expected, got) else "wrong"


# ---- holding a check against it -----------------------------------------------------------------------------------


def measure(case: UserCase, score: Score) -> None:
    """Check one function."""
    batch = case.batch()
    started = time.process_time()
    report = quietly(
        lambda: ds.check_transforms(case.function, *copied(batch), in_dims=case.in_dims, randomness=case.randomness,
                                    transforms=TRANSFORMS)
    )  # fmt: skip
    score.seconds[case.name] = time.process_time() - started
    if isinstance(report, Exception):
        raise report
    for transform in TRANSFORMS:
        real = case.other.get(transform) or truth(case.function, transform, batch, case)
        if real == "plain-refuses" and transform != "vmap":
            # Plain autograd refuses a write into a leaf, which says nothing about the transform.
            real = f"{real}, else {truth(case.function, transform, batch, case, through=True)}"
        said = report.outcomes[transform]
        score.outcomes += 1
        real = real.replace("random", "random, else same") if case.randomness != "error" else real
        right = said in real.split(", else ") or (said in RIGHT and real.endswith("same"))
        score.right_outcomes += right
        if not right:
            reason = next(run.reason + " " + run.message for run in report.runs if run.transform == transform)
            score.words.append(f"{case.name}: {transform} is {real}, said {said}: {reason}"[:260])
        if said in ("refused", "wrong"):
            _place(case, report, transform, score)
    _fixes(case, report, score)


def _place(case: UserCase, report: Any, transform: str, score: Score) -> None:
    wanted = case.lines(transform)
    if not wanted:
        score.words.append(f"{case.name}: {transform} has no line marked, {report.outcomes[transform]}")
    found = [f for f in report.findings if transform in f.transforms and not f.note]
    named = found[0].where.line if found else None
    score.places += 1
    score.right_places += named in wanted
    if named not in wanted:
        told = f"{found[0].code} {found[0].what}" if found else "nothing"
        score.words.append(f"{case.name}: {transform} place {named}, marked {sorted(wanted)}: {told}"[:260])


def _fixes(case: UserCase, report: Any, score: Score) -> None:
    for finding in report.findings:
        if not finding.verified:
            continue
        other = patched(case, finding.patch) if finding.patch else None
        if other is not None and "it has two results then" in finding.fix:
            other = _first_result(other)
        failed = ""
        for seed in range(1, FRESH + 1):
            failed = failed or _fails(case, finding, other, case.batch(seed))
        score.patches += 1
        score.right_patches += not failed
        if failed:
            score.words.append(f"{case.name}: {finding.transform} fix fails, {failed}: {finding.fix}"[:400])


def _first_result(function: Any) -> Any:
    """The result that a function had before an edit returned what it kept outside as a second one."""
    return lambda *args: function(*args)[0]


def _fails(case: UserCase, finding: Any, other: Any, batch: tuple[Any, ...]) -> str:
    transform = finding.transform
    expected = quietly(lambda: plain(case.function, transform, copied(batch), case))
    if isinstance(expected, Exception):
        return ""
    if other is None:
        if "driftscope.vmap" not in finding.fix or "ragged" in finding.fix:
            return ""
        got = quietly(lambda: ds.vmap(case.function, case.in_dims)(*copied(batch)))
        return "" if not isinstance(got, Exception) and agree(expected, got) else f"ds.vmap {got!r:.100}"
    for name in (transform, "grad"):
        expected = quietly(lambda n=name: plain(case.function, n, copied(batch), case))
        finite = not isinstance(expected, Exception) and all(bool(t.isfinite().all()) for t in floats_of(expected))
        got = quietly(lambda n=name: (lifted if n == transform else plain)(other, n, copied(batch), case))
        if finite and (isinstance(got, Exception) or not agree(expected, got)):
            return f"{name} {got!r:.80}, not {expected!r:.80}"
    return ""


def patched(case: UserCase, patch: str) -> Any:
    """Return the case's function with a patch applied to its file."""
    home = sys.modules[getattr(case.function, "__module__", "") or type(case.function).__module__]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{home.__name__.rpartition('.')[2]}_patched.py")
        file.write_text(Path(home.__file__ or "").read_text())
        subprocess.run(["patch", "-s", str(file)], input=patch, text=True, check=True)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        before = len(CASES)
        # Dataclasses look their module up by name.
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
        made, CASES[before:] = CASES[before:], []
    return next(one.function for one in made if one.name == case.name)


def every_case() -> list[UserCase]:
    """Return all functions."""
    for module in MODULES:
        importlib.import_module(f"transforms.users.{module}")
    return list(CASES)


def main(names: list[str]) -> Score:
    """Measure the functions named, or all."""
    score = Score()
    for case in every_case():
        if not names or case.name in names:
            before = len(score.words)
            measure(case, score)
            for words in score.words[before:]:
                print(words, flush=True)
    print(f"{len(score.seconds)} functions: {score}")
    return score


if __name__ == "__main__":
    main(sys.argv[1:])
