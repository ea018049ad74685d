"""The nodes of a comparison as node data for Model Explorer, which colours the graph of the model with them.

The format is that of ``ai-edge-model-explorer`` 0.1 (its ``node_data_builder``): results by name of an output tensor.
"""

from __future__ import annotations

from typing import Any

from driftscope.errors import InputError
from driftscope.records.kinds.comparison import Comparison

#: What can be shown: name -> (field of a node, title, upper limits with the colour of each range).
MEASURES: dict[str, tuple[str, str, tuple[tuple[float, str], ...]]] = {
    "drift": (
        "lifted", "drift in float64",
        ((1e-11, "#a9d8bc"), (1e-6, "#f0d593"), (1e-2, "#ebc1bc"), (1e300, "#d8776d")),
    ),
    "floors": (
        "error_b", "error of B in floors",
        ((1.5, "#a9d8bc"), (2.5, "#f0d593"), (25.0, "#ebc1bc"), (1e300, "#d8776d")),
    ),
}  # fmt: skip


def node_data(record: Comparison, measure: str = "drift") -> dict[str, Any]:
    """Write one measurement of every node of B as node data.

    Parameters
    ----------
    record : Comparison
        With ``nodes``.
    measure : {"drift", "floors"}
        Relative drift between the sides in float64, or B's distance from its own float64 values in floors.

    Returns
    -------
    dict
        JSON data: ``name``, ``results`` by the name of each node's first output, ``thresholds``.

    Raises
    ------
    InputError
        If the record holds no nodes.
    """
    require_nodes(record)
    attribute, title, limits = MEASURES[measure]
    values = {node.value: getattr(node, attribute) for node in record.nodes}
    return {
        "name": f"driftscope: {title}",
        "results": {name: {"value": value} for name, value in values.items() if value is not None},
        "thresholds": [{"value": limit, "bgColor": colour} for limit, colour in limits],
    }


def require_nodes(record: object) -> None:
    """Refuse a record without nodes in one sentence that says how to make one with them."""
    if not isinstance(record, Comparison) or not record.nodes:
        raise InputError(
            "this record holds no nodes; make one that does: driftscope compare A B --nodes -o record.json"
        )
