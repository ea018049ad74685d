"""Findings in words: what was seen, with the user's own names, values and expressions."""

from __future__ import annotations

import ast
import re
from types import FunctionType
from typing import Any

import torch

from driftscope.records.finding import Where
from driftscope.records.kinds.transform_report import TransformFinding
from driftscope.records.words import counted
from driftscope.transforms.diagnose import syntax
from driftscope.transforms.diagnose.catalogue import CAUSES
from driftscope.transforms.examination import Examination
from driftscope.transforms.subject import Proposal, Suspicion
from driftscope.transforms.world.places import definition_of
from driftscope.transforms.world.reach import unwrapped

_VALUES = 4


def finding_of(suspect: Suspicion, examination: Examination, proposal: Proposal | None) -> TransformFinding:
    """Turn a suspect, and the repair that was tried for it, into a finding."""
    cause = CAUSES[suspect.cause]
    place = suspect.place
    names = _names(suspect)
    own = _only_real(suspect) or _without_examples(suspect, names["name"])
    why, fix = own or (cause.why.format(**names), cause.fix.format(**names))
    fix = _drawing_fix(suspect, examination) or _argument_fix(suspect) or fix
    if proposal is not None:
        fix = proposal.fix if proposal.verified is not False else _withdrawn(suspect, fix)
    evidence: dict[str, Any] = dict(suspect.evidence)
    if place is not None and place.column >= 0:
        evidence["span"] = [place.line, place.column, place.end_line, place.end_column]
    if suspect.birthplace is not None:
        evidence["created"] = f"{suspect.birthplace}: {suspect.birthplace.expression}"
    if suspect.operation:
        evidence["operation"] = suspect.operation
    if suspect.error is not None:
        evidence["message"] = first_line(suspect.error)
    if proposal is not None:
        evidence["repair"] = dict(proposal.evidence)
    quiet = cause.note or suspect.outcome in ("plain-refuses", "random")
    return TransformFinding(
        code=suspect.cause,
        what=_what(suspect),
        why=_sentence(why),
        fix=fix,
        where=_where(suspect, examination),
        evidence=evidence,
        note=quiet,
        verified=proposal.verified if proposal is not None else None,
        transform=suspect.transform,
        cause=suspect.cause,
        transforms=(suspect.transform,),
        patch=proposal.patch if proposal is not None and proposal.verified else "",
    )


def _where(suspect: Suspicion, examination: Examination) -> Where:
    """Return the place, or where the function is defined for what was seen of the whole function."""
    function = unwrapped(examination.subject.function)
    place = suspect.place or (definition_of(function) if isinstance(function, FunctionType) else None)
    return place.where if place is not None else Where()


def _argument_fix(suspect: Suspicion) -> str:
    """Return what to do about an argument that the function changes; "" for other state, which could be one."""
    if suspect.cause != "T002" or "argument" not in suspect.evidence:
        return ""
    return f"change a copy of `{suspect.subject_name}` and return it, or use chunk_size=1, which is the loop"


def _only_real(suspect: Suspicion) -> tuple[str, str] | None:
    """Return reason and advice where torch.func refuses complex arguments as such, and not some operation on them."""
    found = re.match(r"(\w+): Expected all inputs to be real", str(suspect.error or ""))
    if found is None:
        return None
    fix = "pass torch.view_as_real(z), and begin the function with torch.view_as_complex"
    return f"torch's {found[1]} takes real arguments alone, and one is complex.", fix


def _without_examples(suspect: Suspicion, name: str) -> tuple[str, str] | None:
    """Return reason and advice where those of the catalogue speak of vmap and its examples, and others refuse."""
    message, transform = str(suspect.error or ""), suspect.transform
    if "saved tensor hooks" in message:
        why = f"hooks on saved tensors, which torch.utils.checkpoint sets, do not run under {transform}."
        return why, "call the function directly where it is transformed, without checkpoint"
    if suspect.cause == "T007" and "a leaf Variable that requires grad" in message:
        why = f"{name} is what is differentiated, and autograd does not let it be overwritten."
        return why, f"clone {name} first and write to the clone"
    if suspect.cause == "T007" and "vmap" not in transform:
        why = f"{name} exists outside the function, and {transform} does not follow what is written there."
        return why, CAUSES["T007"].fix.format(name=name)
    if suspect.cause == "T028" and suspect.operation == "Tensor.data.__get__":
        return (
            f"under {transform} the derivative flows through `.data` as well.",
            "cut with .detach(), which every transform respects",
        )
    if suspect.cause == "T028" and "vmap" not in transform:
        operation = f"`{suspect.operation}`" if suspect.operation else "the operation"
        why = CAUSES["T028"].why.format(operation=operation, transform=transform)
        if suspect.what:  # both modes were asked, and nothing else differs between them
            why = f"forward and reverse mode each have a rule for {operation}; one is wrong here, or none can be right."
        return why, "use an equivalent operator; consider reporting it to torch"
    return None


def _drawing_fix(suspect: Suspicion, examination: Examination) -> str:
    """Return what to do about random numbers under a transform; "" for other causes."""
    if suspect.cause != "T005":
        return ""
    innermost = suspect.transform.rpartition("(")[2].partition("[")[0].rstrip(")")
    if innermost == "jacfwd":
        return 'pass randomness="different" or "same" to torch.func.jacfwd, or draw outside and pass the numbers'
    if innermost == "hessian":
        return 'torch.func.hessian takes no randomness: write jacfwd(jacrev(f), randomness="same"), or draw outside'
    if examination.subject.randomness != "error":
        return "draw outside and pass the numbers as a mapped argument, where they must be the loop's"
    return ""


def _withdrawn(suspect: Suspicion, fix: str) -> str:
    """Return what is left to advise where the edit itself was tried and does not give what the loop gives."""
    if suspect.cause == "T010":
        return (
            "compute what depends on the number outside of the transform and pass it in: staying in tensors was tried"
        )
    return fix


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, with its type when it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _names(suspect: Suspicion) -> dict[str, str]:
    expression = suspect.place.expression if suspect.place is not None else ""
    return {
        "expression": f"`{expression}`" if expression else "this",
        "name": f"`{suspect.subject_name}`" if suspect.subject_name else "the tensor",
        "transform": suspect.transform,
        "operation": f"`{suspect.operation}`" if suspect.operation else "the operation",
        "kind": str(suspect.evidence.get("transform", "useless there")),
        "factory": factory_edit(suspect),
        "tensor_form": tensor_form(suspect),
        "left": _left(suspect, expression),
    }


def _left(suspect: Suspicion, expression: str) -> str:
    """Say what a value loses that leaves the tensors: the examples under vmap, the derivative under the others."""
    if "numpy" in expression or "np." in expression:
        return "what numpy computes is outside of torch, where no transform follows"
    if suspect.transform.startswith("vmap"):
        return "a Python number is one value, and the tensor has one per example; the derivative is cut as well"
    return "a Python number carries no derivative, and none would flow through what is computed from it"


def _what(suspect: Suspicion) -> str:
    if suspect.what:
        return suspect.what + _seen(suspect)
    expression = f"`{suspect.place.expression}`" if suspect.place is not None and suspect.place.expression else "it"
    if suspect.outcome == "refused":
        return f"{suspect.transform} refuses {expression}{_seen(suspect)}"
    if suspect.outcome == "plain-refuses":
        return f"{suspect.transform} refuses {expression}, and so does the plain program"
    if suspect.cause == "T020":
        return f"no derivative flows through {expression}"
    if suspect.outcome == "not-reproducible":
        return "the plain program does not repeat itself"
    difference = suspect.evidence.get("difference")
    return f"{suspect.transform} and the plain program part at {expression}" + (f": {difference}" if difference else "")


def _seen(suspect: Suspicion) -> str:
    """Say what the tensor at the place is: its name, whether it is mapped, its values."""
    event = suspect.event
    if event is None or not event.inputs or not isinstance(event.inputs[0], torch.Tensor):
        return ""
    index = next((i for i, mapped in enumerate(event.mapped_inputs) if mapped), 0)
    value, mapped = event.inputs[index], event.mapped_inputs[index]
    if not isinstance(value, torch.Tensor):
        return ""
    name = _receiver(suspect) if index == 0 else ""
    subject = f"`{name}`" if name else "the tensor there"
    if not mapped:
        # Where nothing is mapped a shape is no reason, but for what a batch is written into.
        written = suspect.cause in ("T006", "T007") and suspect.transform.startswith("vmap")
        return f": {subject} of shape {tuple(value.shape)} has no mapped axis" if written else ""
    if not value.dim():
        return f": {subject} has shape {tuple(value.shape)}"
    each = value.numel() // max(value.shape[0], 1)
    if each == 1:
        shown = ", ".join(_number(x) for x in value.reshape(-1)[:_VALUES].tolist())
        return f": {subject} is mapped over {counted(value.shape[0], 'example')}: {shown}"
    return f": {subject} is mapped over {counted(value.shape[0], 'example')}, each of shape {tuple(value.shape[1:])}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _receiver(suspect: Suspicion) -> str:
    """Return the source of the tensor a conversion or method is applied to."""
    node = syntax.node_at(suspect.place) if suspect.place is not None else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = root = node.func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in ("torch", "math", "np", "numpy", "F", "nn"):
            first = node.args[0] if node.args else None
            return ast.unparse(first) if first is not None and not isinstance(first, ast.Lambda) else ""
        if suspect.operation != f"Tensor.{node.func.attr}":
            # A module, a Function or a helper is called here: its tensor is its argument.
            return ast.unparse(node.args[0]) if node.args else ""
        return ast.unparse(owner)
    if isinstance(node, ast.Call) and node.args:
        return ast.unparse(node.args[0])
    if isinstance(node, ast.Subscript) and suspect.cause == "T011":
        return ast.unparse(node.value)  # how many elements a mask chooses: the tensor it is laid upon is mapped
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Compare, ast.Attribute, ast.Subscript)) else ""


def factory_edit(suspect: Suspicion) -> str:
    """Write a factory call with a mapped tensor's ``new_`` method: ``torch.zeros(3)`` as ``x.new_zeros(3)``."""
    generic = "x.new_zeros(...), or torch.zeros_like(x)"
    birth = suspect.birthplace
    node = syntax.node_at(birth) if birth is not None else None
    if birth is None or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return generic
    if ast.unparse(node.func.value) != "torch" or node.func.attr not in ("zeros", "ones", "empty", "full", "tensor"):
        return generic
    mapped = _mapped_name(suspect) or "x"
    kept = [ast.unparse(k) for k in node.keywords if k.arg not in ("dtype", "device") or not _is_of(k.value, mapped)]
    inner = ", ".join([*(ast.unparse(a) for a in node.args), *kept])
    return f"line {birth.line}: `{birth.expression}` -> `{mapped}.new_{node.func.attr}({inner})`"


def _is_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name


def _mapped_name(suspect: Suspicion) -> str:
    """Return the name of a tensor that carries the mapped axis: the argument read in the statement of the write."""
    place = suspect.place
    scope = syntax.scope_of(place) if place is not None else None
    if not isinstance(scope, (ast.FunctionDef, ast.Lambda)):
        return ""
    parameters = [a.arg for a in scope.args.args]
    statement = syntax.node_at(place) if place is not None else None
    read = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)] if statement is not None else []
    return next((name for name in read if name in parameters), parameters[0] if parameters else "")


_MATH = frozenset(
    (
        "sqrt",
        "exp",
        "log",
        "sin",
        "cos",
        "tan",
        "tanh",
        "floor",
        "ceil",
        "pow",
        "atan2",
        "erf",
        "log2",
        "log10",
        "log1p",
    )
)


def tensor_form(suspect: Suspicion) -> str:
    """Write a conversion as tensor arithmetic: ``math.sqrt(t)`` as ``torch.sqrt(t)``, ``t.item()`` as ``t``."""
    node = syntax.node_at(suspect.place) if suspect.place is not None else None
    if isinstance(node, ast.Call):
        source = ast.unparse(node)
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "math" and node.func.attr in _MATH:
            return f"`{source}` -> `torch.{node.func.attr}({', '.join(map(ast.unparse, node.args))})`"
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("item", "detach"):
            return f"`{source}` -> `{ast.unparse(node.func.value)}`"
        if isinstance(node.func, ast.Name) and node.func.id in ("float", "int") and node.args:
            inner = ast.unparse(node.args[0])
            return f"`{source}` -> `{inner if node.func.id == 'float' else f'({inner}).long()'}`"
        if source.startswith("torch.tensor(") and node.args:
            return f"`{source}` -> `{ast.unparse(node.args[0])}.clone()`, or torch.stack of its tensors"
    return "use the torch function on the tensor itself"
