"""A quantised graph with its quantisation undone: the other side's weights in, integers out.

What is left is compared as any graph is. If it is the other side's function, all that the two differ by is the
quantisation, and what it costs can be said layer by layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.explain.causes.alterations import uniform_of
from driftscope.explain.quantised.activations import swallowed
from driftscope.explain.quantised.findings import INFINITE, endless_finding, swallowed_finding, tried, wrong_weight
from driftscope.explain.quantised.operators import OPERATORS, taken_apart
from driftscope.explain.quantised.originals import computed_constants, computed_numbers, consumed, float_weights, rounds
from driftscope.explain.quantised.undone import STORED_END, Undone, beside, identity, idle_ends, stored_as
from driftscope.explain.quantised.weights import PASSING, Graph, IntegerGrid, Quantised
from driftscope.lift.evidence import Evidence, pairing_of
from driftscope.lift.reconcile import scalars
from driftscope.lift.reconcile.certify import reconcile
from driftscope.lift.reconcile.drifts import OutputPairing
from driftscope.lift.side_lift import SideLift
from driftscope.lift.sources import lift_source
from driftscope.lift.steps import Constant, Lifted, LiftedOutput, Origin
from driftscope.programs.protocol import Bound, OnnxSource
from driftscope.records.finding import Finding, Where
from driftscope.records.first_line import share

_INTEGERS = frozenset({"DequantizeLinear", "MatMulInteger", "ConvInteger", "MatMulNBits"}) | OPERATORS
_QUANTISERS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
# Layers whose cost is measured one by one, and that are named.
MEASURED, _NAMED = 48, 3
# What stands for numbers of the quantised side's own, as a stored mask has them.
_OWN = "whole numbers"
# Relative drift above which it is not float64 that rounds.
_DEEP = 1e-10


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What the quantisation of one side is.

    Parameters
    ----------
    side : str
    words : str
        One sentence for the verdict; empty where the integers are not the other side's weights.
    code : str
        Of the finding: W013 for integers, W007 for numbers that were rounded in place.
    layers : sequence of dict
        Per weight: its name, the reference's name, its own relative error, and the error it alone makes at the
        outputs; the dearest first.
    wrong : sequence of Finding
        Integers, scales and zero points that are not those of the other side's weights.
    where : Where or None
        Where the dearest weight is used, as far as that is known.
    clean : sequence of LiftedOutput
        What this side gives in float64 without its quantisation.
    """

    side: str
    words: str = ""
    layers: Sequence[Mapping[str, Any]] = ()
    wrong: Sequence[Finding] = ()
    code: str = "W013"
    where: Where | None = None
    clean: Sequence[LiftedOutput] = ()


def as_quantised(
    side: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]], clean: Sequence[LiftedOutput]
) -> Quantisation:
    """Say that a side is the other one with its weights rounded to integers, and where that costs most."""
    layers, dear = _dearest(rows)
    other = "A" if side == "B" else "B"
    if not names:
        words = f"{side} is {other} with quantised activations: with none of them rounded to integers the two are the"
        return Quantisation(side, f"{words} same function", clean=clean)
    number = f"{len(names)} integer tensors are {other}'s weights" if len(names) > 1 else f"{names[0]} is {other}'s"
    words = f"{side} is {other} with quantised weights: {number}, rounded, and without the quantisation the two are the"
    cost = f". Each alone costs most at {dear}" if any(layer["output"] for layer in layers) else ""
    return Quantisation(side, f"{words} same function{cost}", layers, clean=clean)


def as_rounded(side: str, held: str, how: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Quantisation:
    """Say that a side is the other one with what it holds (weights) rounded in place, and where that costs most."""
    layers, dear = _dearest(rows)
    other = "A" if side == "B" else "B"
    number, costs = f"{len(how)} of its {held}s are {other}'s", f". Each alone costs most at {dear}"
    if len(how) == 1:
        number, costs = f"one {held}, {layers[0]['weight']}, is {other}'s", ""
    words = f"{side} is {other} with {held}s {' and '.join(_kinds(how))}: {number}, and with {other}'s numbers in place"
    return Quantisation(side, f"{words} the two are the same function{costs}", layers, code="W007")


def _kinds(how: Sequence[str]) -> list[str]:
    """Return each way once; what may be either of two is told as the one that others of the tensors show."""
    ways = list(dict.fromkeys(how))
    told = [way.partition(" or ") for way in ways]
    return [
        way
        for way, (first, either, second) in zip(ways, told, strict=True)
        if not either or not {first, f"rounded to {second}"} & {*ways}
    ]


def _dearest(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
    layers = sorted(rows, key=lambda row: -float(row["output"]))
    return layers, ", ".join(f"{layer['weight']} ({share(layer['output'])})" for layer in layers[:_NAMED])


def cost_of(
    weight: IntegerGrid, name: str, exact: torch.Tensor, clean: Sequence[LiftedOutput], moved: Sequence[LiftedOutput]
) -> dict[str, Any]:
    """What one weight's rounding alone does to the outputs, relative."""
    own = rms(weight.value - exact) / (rms(exact) or math.inf)
    return {"weight": name, "node": weight.name, "error": own, "output": off_by(clean, moved)}


def off_by(clean: Sequence[LiftedOutput], moved: Sequence[LiftedOutput]) -> float:
    """How far the outputs of one run are from those of another, relative: the largest."""
    shares = [
        rms(finite(m.value - c.value)) / (rms(finite(c.value)) or math.inf)
        for m, c in zip(moved, clean, strict=True)
        if m.value is not None and c.value is not None and c.value.is_floating_point()
    ]
    return max(shares, default=0.0)


def same_as(side: str, other: Lifted, floats: Lifted, evidence: Evidence) -> bool:
    """Whether a side without its quantisation is the other side's function."""
    theirs = evidence.a if side == "B" else evidence.b
    pairs = [(i, j) if side == "B" else (j, i) for i, j in evidence.pairs]
    own = SideLift(floats, clean=floats.run())
    known = reconcile(other, floats, (theirs.clean, own.clean), OutputPairing(pairs, [None] * len(pairs)), THRESHOLDS)
    if known.same_function or any(d.value > _DEEP for d in known.drifts):
        return known.same_function
    # Deep programs round in float64 by more than the usual limit: theirs is measured.
    return reconcile(other, floats, (theirs.clean, own.clean), pairing_of(theirs, own, pairs), THRESHOLDS).same_function


def quantisation_of(bounds: tuple[Bound, Bound], evidence: Evidence) -> Quantisation | None:
    """Say what the quantisation of a side is; None where neither side is quantised, or both are."""
    sources = [_graph_source(bound) for bound in bounds]
    quantised = [s is not None and any(n.op_type in _INTEGERS for n in s.model.graph.node) for s in sources]
    index = side_alone(quantised)
    if index is None:
        return None
    other = (evidence.a, evidence.b)[1 - index].graph
    source = sources[index]
    if other is None or source is None:
        return None
    try:
        apart = OnnxSource(taken_apart(source.whole()), source.feeds)
        return _QuantisedSide("AB"[index], apart, other, evidence).judge()
    except (CannotLift, onnx.checker.ValidationError):
        return None


def _graph_source(bound: Bound) -> OnnxSource | None:
    try:
        source = bound.program.lift_source(bound)
    except (CannotLift, RuntimeRefused):
        return None
    return source if isinstance(source, OnnxSource) else None


def side_alone(found: Sequence[object]) -> int | None:
    """Which of two sides alone something was found in: 0 or 1; None for neither and for both."""
    there = [bool(one) for one in found]
    return there.index(True) if sum(there) == 1 else None


class _QuantisedSide:
    """One quantised side and the other side's graph."""

    def __init__(self, side: str, source: OnnxSource, other: Lifted, evidence: Evidence):
        self.side, self.source, self.other, self.evidence = side, source, other, evidence
        self.graph, self.idle = Graph(source.model), frozenset[str]()
        self.taken, self.layers = set[str](), dict[str, str]()  # weights, and by what their layers make
        self.constants, self.computed = float_weights(other), computed_constants(other)
        folded = set[str]() if "BatchNormalization" in {n.op_type for n in source.model.graph.node} else consumed(other)
        self.pools = [[c for c in self.constants if c.name not in folded], *([self.constants] if folded else [])]
        single = (c for c in other.constants() if c.value.numel() == 1 and c.origin is Origin.WEIGHT and c.value.dim())
        self.single = [(c, c.value.to(torch.float64)) for c in single if c.value.dtype.is_floating_point]
        # With what an exporter makes of them: it splits a scale over query and key, as its root.
        meant = [n for n in scalars.numbers(other.constants()) if n.value]
        self.numbers = [n.value for n in meant if n.value > 0 and not n.derived]
        self.written = [(n.words, n.value, 0.0) for n in meant] + computed_numbers(other)

    def judge(self) -> Quantisation | None:
        """Match every weight, undo the quantisation, and hold what is left against the other side."""
        scales, endless, used = self._scales(), self._endless(), True
        for pool, neutral in itertools.product(self.pools, (True, False)):
            if not neutral and not used:
                continue
            self.constants = pool
            matched, wrong, used = self._matched(neutral)
            # A stored mask of infinities is told with what reads it.
            wrong += scales + ([] if any(INFINITE in f.why for f in wrong) else endless)
            if not matched and (wrong or not any(map(self._quantiser, self.source.model.graph.node))):
                return Quantisation(self.side, wrong=wrong) if wrong else None
            floats, same = self._held(matched)
            if same:
                break
        if wrong:
            return Quantisation(self.side, wrong=tried(wrong, same))
        if not same:
            if not rounds(self.other):  # what else differs is looked for in the graph without its quantisation
                without = f"without the quantisation of {self.side}"
                self.evidence.undone = self.evidence.with_side(self.side, floats, without)
            return None
        rows = self._costs(floats, matched)
        lost = self._swallowed(floats, matched, max((float(row["output"]) for row in rows), default=0.0))
        if lost:
            return Quantisation(self.side, wrong=tried(lost, same))
        return as_quantised(self.side, [name for _, name, _ in matched if name != _OWN], rows, floats.run())

    def _held(self, matched: Sequence[tuple[Quantised, str, torch.Tensor]]) -> tuple[Lifted, bool]:
        """The graph in floats, and whether it is the other side's function, with all ends of ranges or few."""
        self.idle, first = frozenset[str](), None
        while True:
            floats = lift_source(OnnxSource(self._undone(matched), self.source.feeds))
            if same_as(self.side, self.other, floats, self.evidence):
                return floats, True
            first, found = first or floats, idle_ends(floats, self.source.model, self.graph)
            if found <= self.idle:
                break
            self.idle |= found  # one that was none hides others behind it
        self.idle = frozenset()
        return first, False

    def _matched(self, neutral: bool) -> tuple[list[tuple[Quantised, str, torch.Tensor]], list[Finding], bool]:
        """Every weight with the other side's, and which are not its; last, whether a neutral number was taken for one.

        An exporter writes ones and zeros where an operator needs a weight and a bias that the program does not have.
        """
        wrong, matched, used = [], list[tuple[Quantised, str, torch.Tensor]](), False
        self.taken, self.layers = set(), {}
        for weight in self.graph.in_order(self.source.model):
            partner = self._partner(weight)
            if weight.value.numel() == 1:  # of many numbers of the program one may be as near: it has to be this one
                partner = self._number(weight)
            if partner is None:  # numbers of its own, no weight
                whole = weight.whole()
                matched += [] if whole is None else [(weight, _OWN, whole)]
                continue
            constant, exact = partner
            # What has a range is not rounded to one integer: a scale of one takes any small numbers for zeros.
            wide = not weight.rounds(exact) or (uniform_of(exact) is None and not weight.is_named(constant))
            name, own = constant.name, weight.neutral() if neutral and wide else None
            if own is not None:
                name, exact, used = f"the number {float(own.reshape(-1)[0]):g}", own, True
            elif not weight.rounds(exact):
                where = Where(node=weight.node.name or weight.node.output[0], operator=weight.node.op_type)
                wrong.append(wrong_weight(weight, name, exact, where))
            matched.append((weight, name, exact))
            self.taken.add(name)
            self.layers.setdefault(self.graph.reader_of(weight), name)
        return matched, wrong, used

    def _partner(self, weight: Quantised) -> tuple[Constant, torch.Tensor] | None:
        """The other side's tensor that integers stand for: one that they are the rounding of, stored or computed."""
        stored = weight.partner(self.constants, self.taken, self.layers.get(self.graph.reader_of(weight), ""))
        if stored is not None and weight.rounds(stored[1]):
            return stored
        computed = weight.partner(self.computed, self.taken)
        if computed is not None and weight.rounds(computed[1]):
            return computed
        # Of what is computed on the way anything of this size may be the nearest, and numbers of its own be meant.
        near = next((p for p in (stored, computed) if p is not None), None)
        own = near is not None and near[0].origin is Origin.COMPUTED and not weight.is_named(near[0])
        # A stored mask is whole numbers, and much of it the same as of any other mask.
        return None if own and near and (weight.whole() is not None or not weight.is_like(near[1])) else near

    def _number(self, weight: Quantised) -> tuple[Constant, torch.Tensor] | None:
        """The other side's tensor of one number that an integer stands for, or a number that its scale was made of."""
        found = ((c, v.reshape(weight.value.shape)) for c, v in self.single)
        stored = next(((c, v) for c, v in found if weight.rounds(v)), None)
        own = float(weight.value)
        near = next(((w, n) for w, n, off in self.written if abs(own - n) <= STORED_END * abs(n) + off), None)
        if stored or near is None:
            return stored
        meant = torch.full_like(weight.value, near[1])
        return Constant(near[0], meant, Origin.LITERAL, Where()), meant

    def _scales(self) -> list[Finding]:
        """Activations that are scaled back by another number than they were scaled by."""
        found = []
        for node in self.source.model.graph.node:
            before = self._quantiser(node)
            if before is None:
                continue
            for k, word in ((1, "scale"), (2, "zero point")):
                one, other = (self.graph.array(n.input[k]) if len(n.input) > k else None for n in (before, node))
                if one is not None and other is not None and not np.array_equal(one, other):
                    cause = (
                        f"its {word} is {other.reshape(-1)[0]}, and {before.name} quantises with {one.reshape(-1)[0]}"
                    )
                    what = f"{node.name} does not undo {before.name}: {cause}"
                    where = Where(node=node.name, operator=node.op_type)
                    found.append(Finding("W012", what, "", f"Give both one {word}.", where, {"cause": cause}))
        return found

    def _endless(self) -> list[Finding]:
        """Activations whose scale is infinite: calibration met an infinity, as a mask has."""
        nodes = self.source.model.graph.node
        pairs = ((n, self.graph.array(n.input[1])) for n in nodes if n.op_type == "QuantizeLinear")
        found = [n for n, scale in pairs if scale is not None and not np.isfinite(scale).all()]
        return [endless_finding(found)] if found else []

    def _swallowed(
        self, floats: Lifted, matched: Sequence[tuple[Quantised, str, torch.Tensor]], dearest: float
    ) -> list[Finding]:
        """Activations of which nothing is left, and which alone cost more than any weight does."""
        nodes = self.source.model.graph.node
        static = (q for q in map(self._quantiser, nodes) if q is not None and q.op_type == "QuantizeLinear")
        quantisers = {q.output[0]: q for q in static}
        found, clean = [], floats.run()
        for lost in swallowed(floats, quantisers, self.graph)[:MEASURED]:
            alone = lift_source(OnnxSource(self._undone(matched, lost.node), self.source.feeds))
            cost = off_by(clean, alone.run())
            if cost > dearest:
                found.append(swallowed_finding(lost, cost))
        return sorted(found, key=lambda f: -float(f.evidence["output"]))

    def _undone(
        self, matched: Sequence[tuple[Quantised, str, torch.Tensor]], kept: onnx.NodeProto | None = None
    ) -> onnx.ModelProto:
        """The graph without its quantisation, but for one quantiser of an activation that is kept."""
        whole = onnx.ModelProto()
        whole.CopyFrom(self.source.model)
        undone = Undone(whole, self.graph)
        places = {id(w.node): (w, stored_as(k, w)) for k, (w, _, _) in enumerate(matched)}
        for k, (w, _, exact) in enumerate(matched):
            undone.put(stored_as(k, w), exact)
        scaled = {m.output[0]: node for w, _, _ in matched for node in [w.node]
                  if node.op_type.endswith("Integer") for m in [self.graph.scale_of(node)[1]]}  # type: ignore[index]  # fmt: skip
        moved = {id(w.mover): f"undone.{k}" for k, (w, _, _) in enumerate(matched) if w.mover is not None}
        nodes: list[onnx.NodeProto] = []
        pairs = [(node, self._quantiser(node)) for node in self.source.model.graph.node]
        pairs = [(node, q) for node, q in pairs if kept is None or q is not kept]
        back, there = {id(node) for node, q in pairs if q is not None}, {id(q) for _, q in pairs if q is not None}
        there |= {id(q) for w, _, _ in matched if (q := self._moved_quantiser(w.node)) is not None}
        for node in self.source.model.graph.node:
            if id(node) in places:
                nodes += undone.node(*places[id(node)])
            elif id(node) in moved:
                mover = onnx.NodeProto()
                mover.CopyFrom(node)
                mover.input[0] = moved[id(node)]
                nodes.append(mover)
            elif id(node) in there:
                nodes.append(undone.floating(node, self.numbers, self.idle))
                if node.op_type == "DynamicQuantizeLinear":  # its scale and zero point are read as well
                    nodes.append(beside(node))
            elif id(node) in back:
                nodes.append(identity(node.input[0], node))
            elif node.output[0] in scaled:
                casts = (n for n in node.input if n in self.graph.made and self.graph.made[n].op_type == "Cast")
                nodes.append(identity(next(casts), node))
            else:
                nodes.append(node)
        del whole.graph.node[:]
        quantisers = (self._quantised_by(n.input[0]) if n.op_type == "Pad" else None for n in nodes)
        whole.graph.node.extend(n if q is None else undone.padded(n, q) for n, q in zip(nodes, quantisers, strict=True))
        del whole.graph.value_info[:]  # integers that are floats now
        return whole

    def _quantiser(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The step that quantised what a DequantizeLinear makes floats again, through what only moves integers."""
        return self._quantised_by(node.input[0]) if node.op_type == "DequantizeLinear" else None

    def _moved_quantiser(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The step that quantised what an integer product reads, where something moves the integers in between."""
        made = self.graph.made.get(node.input[0]) if node.op_type.endswith("Integer") else None
        return self._quantised_by(node.input[0]) if made is not None and made.op_type in PASSING else None

    def _quantised_by(self, name: str) -> onnx.NodeProto | None:
        before = self.graph.made.get(self.graph.behind(name)[0])
        return before if before is not None and before.op_type in _QUANTISERS else None

    def _costs(self, floats: Lifted, matched: Sequence[tuple[Quantised, str, torch.Tensor]]) -> list[dict[str, Any]]:
        clean, rows = floats.run(), []
        for k, (weight, name, exact) in enumerate(matched[:MEASURED]):
            moved = floats.run(replace={stored_as(k, weight): weight.value})
            rows.append(cost_of(weight, name, exact, clean, moved) | {"node": weight.node.name})
        return rows
