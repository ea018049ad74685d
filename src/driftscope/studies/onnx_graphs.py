"""What a runtime made of a graph: the casts it inserted, the nodes it fused, the format it computes in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx

_FLOATS: dict[int, str] = {
    onnx.TensorProto.DOUBLE: "float64", onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between the graph a session was given and the one it runs.

    Parameters
    ----------
    inserted : tuple of str
        Operators that are new, as ``("4 Cast to float32",)``.
    removed : tuple of str
        Operators that are gone.
    run : tuple of str
        All operators of the graph that is run, sorted.
    """

    inserted: tuple[str, ...]
    removed: tuple[str, ...]
    run: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What happened in a few words, ``""`` for nothing."""
        if not self.inserted and not self.removed:
            return ""
        if not self.removed:
            return f"inserted {', '.join(self.inserted)}"
        return f"{', '.join(self.removed)} became {', '.join(self.inserted) or 'nothing'}"

    @property
    def casts(self) -> int:
        """Casts the runtime inserted, beside those the model holds."""
        return sum(int(words.split()[0]) for words in self.inserted if words.split()[1] == "Cast")


def changes_between(given: onnx.ModelProto, run: onnx.ModelProto) -> Changes:
    """Compare two graphs by their operators; a cast counts with the format it goes to."""
    before, after = Counter(map(_words, given.graph.node)), Counter(map(_words, run.graph.node))
    return Changes(_counted(after - before), _counted(before - after), tuple(sorted(after.elements())))


def _words(node: onnx.NodeProto) -> str:
    if node.op_type != "Cast":
        return str(node.op_type)
    to = next((int(a.i) for a in node.attribute if a.name == "to"), 0)
    return f"Cast to {_FLOATS.get(to, str(to))}"


def _counted(operators: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{count} {operator}" for operator, count in sorted(operators.items()))


def rounding_operators(run: onnx.ModelProto, dtype: str) -> tuple[str, ...]:
    """Return the operators of a graph whose result is rounded to a narrow format, in order.

    Parameters
    ----------
    run : onnx.ModelProto
        A graph of element-wise operators, products and normalisations: a result has the format of the first operand.
    dtype : str
        The narrow format.

    Returns
    -------
    tuple of str
        A cast down counts as the operator that made what is cast.
    """
    formats = {v.name: _FLOATS.get(v.type.tensor_type.elem_type, "") for v in run.graph.input}
    maker: dict[str, str] = {}
    found = []
    for node in run.graph.node:
        source, target = node.input[0], node.output[0]
        if node.op_type == "Cast":
            formats[target] = _words(node).removeprefix("Cast to ")
            maker[target] = maker.get(source, "")
            rounds = formats[target] == dtype != formats.get(source, "") and source in maker
        else:
            formats[target], maker[target] = formats.get(source, ""), str(node.op_type)
            rounds = formats[target] == dtype
        if rounds:
            found.append(maker[target])
    return tuple(found)
