"""Whether the exporter's own optimisation moved the result: the same module exported with it and without it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

import onnx
import torch

from driftscope.errors import RuntimeRefused
from driftscope.explain.blame.optimisers import in_words, operator_delta, operators_of
from driftscope.explain.locate.targets import Distance, Target, largest_gap, same_bits
from driftscope.programs.loading.load import onnx_program
from driftscope.programs.operator_table import one_table
from driftscope.programs.protocol import Bound
from driftscope.programs.torch_run import fresh, words_of
from driftscope.records.kinds.left_out import Blame, Suspect

#: Exports with the exporter's optimisation, or without it.
Exporter = Callable[[bool], onnx.ModelProto]


def torch_exporter(bound: Bound, opset: int | None = None) -> Exporter:
    """Return ``torch.onnx.export`` of a bound torch program."""
    source = bound.program.lift_source(bound)
    exported = getattr(source, "exported", None)
    subject: Any = exported or getattr(source, "module", None) or getattr(source, "function", None)

    def export(optimize: bool) -> onnx.ModelProto:
        args, kwargs = fresh(bound)
        chosen: dict[str, Any] = {} if opset is None else {"opset_version": opset}
        logger = logging.getLogger("torch.onnx._internal.exporter._registration")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with one_table():
                made = torch.onnx.export(
                    subject, args, kwargs=kwargs, dynamo=True, optimize=optimize, verbose=False, **chosen
                )
        except Exception as error:
            raise RuntimeRefused("torch.onnx.export", "load", _plain(words_of(error))) from error
        finally:
            logger.setLevel(level)
        if made is None:
            raise RuntimeRefused("torch.onnx.export", "load", "it returned no program")
        return made.model_proto

    return export


def _plain(words: str) -> str:
    """A message of the exporter without its colours and without the advice that follows it."""
    return re.sub(r"\x1b\[[0-9;]*m", "", words).partition(" Next steps:")[0]


def blame_export(bound: Bound, target: Target, exporter: Exporter | None = None) -> Blame:
    """Export a torch program with and without the exporter's optimisation, and say whether that moved the result.

    Parameters
    ----------
    bound : Bound
        A torch or exported program with its inputs.
    target : Target
        What it gives eagerly; its ``function`` is told the graph of each file.
    exporter : callable or None
        Told whether to optimise, gives the model; None for ``torch.onnx.export``.

    Raises
    ------
    RuntimeRefused
        If it cannot be exported, or the file does not run.
    """
    start = time.perf_counter()
    export = exporter or torch_exporter(bound)
    results = [_run(export(optimize), bound, target) for optimize in (True, False)]
    (with_it, outputs, proto), (without, plain_outputs, plain) = results
    wrong = not with_it.fine
    explains = wrong and without.fine
    lifted = [None if d.lifted is None else d.lifted.overall for d in (with_it, without)]
    suspect = Suspect(
        "optimize=True", "exporter", operator_delta(operators_of(proto), operators_of(plain)),
        same_bits=same_bits(outputs, plain_outputs), moved=largest_gap(outputs, plain_outputs),
        floors=without.floors, lifted=lifted[1], explains=explains, seconds=time.perf_counter() - start,
    )  # fmt: skip
    paste = "torch.onnx.export(model, args, dynamo=True, optimize=False)" if explains else ""
    return Blame(
        answer=_answer(with_it, without, suspect),
        guilty=("optimize=True",) if explains else (),
        suspects=(suspect,),
        program=f"{bound.program.name} exported by torch {torch.__version__}",
        reference=target.words,
        wrong=wrong,
        floors=with_it.floors, lifted=lifted[0],
        floors_without=without.floors if explains else None, lifted_without=lifted[1] if explains else None,
        paste=paste,
        program_line="ds.onnx(torch.onnx.export(model, args, dynamo=True, optimize=False))" if explains else "",
        verified=True if explains else None,
        runs=2,
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def _run(proto: onnx.ModelProto, bound: Bound, target: Target) -> tuple[Distance, list[Any], onnx.ModelProto]:
    # Without the runtime's own optimisers: only the exporter's are in question.
    program = onnx_program(proto, level="disable")
    fitted = program.bind(_in_order(bound))
    outputs = list(program(fitted).values())
    return target.distance(outputs, program.lift_source(fitted)), outputs, proto


def _in_order(bound: Bound) -> Any:
    """The inputs in the order of the call: a file's inputs may bear other names."""
    return tuple(value for value in bound.arguments.values() if isinstance(value, torch.Tensor))


def _answer(with_it: Distance, without: Distance, suspect: Suspect) -> str:
    if with_it.fine:
        state = "changes no bit" if suspect.same_bits else "changes bits, within rounding"
        return f"the exporter's optimisation is not to blame: it {state}"
    if suspect.explains:
        return (
            f"the exporter's optimisation moved the result: {in_words(with_it)} from the module with optimize=True, "
            f"{in_words(without)} with optimize=False"
        )
    return f"the exporter's optimisation is not to blame: {in_words(without)} without it as well"
