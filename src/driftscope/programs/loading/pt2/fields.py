"""What each text and number of a ``.pt2`` file may be: a check for every field that torch's schema has.

The table is the allowlist. A field that is not in it may only hold an identifier.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any

from driftscope.programs.loading.pt2.containers import NotContainer, container_name, container_text
from driftscope.programs.loading.pt2.expressions import NotArithmetic, guard_text, symbol_text
from driftscope.programs.loading.pt2.operators import NotAllowed, checked_operator

_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,500}", re.ASCII)
# Segments of a module path: FX puts them between quotes, and Python allows more in them than in identifiers.
_SEGMENT = re.compile(r"[\w \-+:@/,<>]{1,200}", re.ASCII)
_PLAIN = re.compile(r"[^'\"\\\x00-\x1f\x7f(){};=#]{0,1000}")
_DEVICE = re.compile(r"[a-z]{1,20}", re.ASCII)
_VERSION = re.compile(r"[\w.+<=>~ \-]{0,100}", re.ASCII)
_STRING = re.compile(r"[^\x00]{0,10000}", re.DOTALL)
_DIALECTS = frozenset({"TRAINING", "ATEN", "EDGE", ""})
_KEPT_METADATA = ("stack_trace", "nn_module_stack", "torch_fn")
_LONGEST_METADATA = 100_000


class FieldRefused(ValueError):
    """A part of a file is not what may stand there; its message is one clause that begins with "it" or a noun."""


def identifier(text: str) -> str:
    """A name that FX writes into generated code as it is."""
    if not _IDENTIFIER.fullmatch(text) or keyword.iskeyword(text) or _is_dunder(text):
        raise FieldRefused(f"it has a name that could become code, {text[:80]!r}")
    return text


def _identifier_or_nothing(text: str) -> str:
    return text and identifier(text)


def _module_path(text: str) -> str:
    if text and not all(_SEGMENT.fullmatch(s) and not _is_dunder(s) for s in text.split(".")):
        raise FieldRefused(f"it has a name that could become code, {text[:80]!r}")
    return text


def _is_dunder(text: str) -> bool:
    return text.startswith("__") and text.endswith("__")


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise FieldRefused(f"{what}, {text[:80]!r}")
        return text

    return check


def _symbols(text: str) -> str:
    try:
        return symbol_text(text)
    except NotArithmetic as error:
        raise FieldRefused(f"it has a shape expression that is not arithmetic, {text[:80]!r}: {error}") from error


def _range_name(text: str) -> str:
    """The symbol, or the expression as sympy prints it, that a range belongs to; torch compares the text."""
    if re.search(r"\d{7}", text):  # torch counts up to the number of an unbacked symbol
        raise FieldRefused(f"it has a range for an unknown symbol, {text[:80]!r}")
    if not _IDENTIFIER.fullmatch(text):
        _symbols(text)
    return text


def _guard(text: str) -> str:
    try:
        return guard_text(text)
    except NotArithmetic as error:
        raise FieldRefused(f"it has a guard that is not arithmetic, {text[:80]!r}: {error}") from error


def _operator(text: str) -> str:
    try:
        return checked_operator(text)
    except NotAllowed as error:
        raise FieldRefused(str(error)) from error


def _containers(text: str) -> str:
    try:
        return container_text(text)
    except NotContainer as error:
        raise FieldRefused(str(error)) from error


def _container_name(text: str) -> str:
    try:
        return container_name(text)
    except NotContainer as error:
        raise FieldRefused(str(error)) from error


def _dialect(text: str) -> str:
    if text not in _DIALECTS:
        raise FieldRefused(f"it is of the dialect {text[:40]!r}, which is not known")
    return text


_plain = _matching(_PLAIN, "it has a text that could become code")
_string = _matching(_STRING, "it has an overlong text, or one with a NUL")

TEXTS: Mapping[tuple[str, str], Callable[[str], str]] = {
    ("SymExpr", "expr_str"): _symbols,
    ("ExportedProgram", "range_constraints"): _range_name,
    ("ExportedProgram", "guards_code"): _guard,
    ("ExportedProgram", "verifiers"): _dialect,
    ("ExportedProgram", "torch_version"): _matching(_VERSION, "it names an unknown version of torch"),
    ("Node", "target"): _operator,
    ("Argument", "as_operator"): _operator,
    ("Argument", "as_string"): _string,
    ("Argument", "as_strings"): _string,
    ("Argument", "as_string_to_argument"): _plain,
    ("ConstantValue", "as_string"): _plain,
    ("Device", "type"): _matching(_DEVICE, "it names an unknown device"),
    ("NamedArgument", "name"): _identifier_or_nothing,
    ("TensorArgument", "name"): _identifier_or_nothing,
    ("ModuleCallSignature", "in_spec"): _containers,
    ("ModuleCallSignature", "out_spec"): _containers,
    ("ModuleCallEntry", "fqn"): _module_path,
    ("GraphModule", "treespec_namedtuple_fields"): _container_name,
    ("PayloadConfig", "config"): _module_path,
    ("InputToParameterSpec", "parameter_name"): _module_path,
    ("InputToBufferSpec", "buffer_name"): _module_path,
    ("InputToTensorConstantSpec", "tensor_constant_name"): _module_path,
    ("BufferMutationSpec", "buffer_name"): _module_path,
    ("ParameterMutationSpec", "parameter_name"): _module_path,
    ("GradientToParameterSpec", "parameter_name"): _module_path,
}

# Classes of torch's schema that stand for something other than data.
CLASSES: Mapping[str, str] = {
    "CustomObjArgument": "it holds a script object, which is code; export with tensors alone",
    "InputToCustomObjSpec": "it holds a script object, which is code; export with tensors alone",
}


def checked_text(owner: str, field: str, text: str) -> str:
    """Return what may stand in a text field of torch's schema, in its canonical form.

    Raises
    ------
    Refused
        With the reason.
    """
    return TEXTS.get((owner, field), identifier)(text)


def kept_metadata(owner: str, data: Any) -> dict[str, str]:
    """Return the metadata that is shown to people; the rest is for passes that do not run here."""
    if not isinstance(data, Mapping):
        raise FieldRefused("its metadata are damaged")
    if owner != "Node":
        return {}
    kept = {key: data[key] for key in _KEPT_METADATA if isinstance(data.get(key), str)}
    kept = {key: text[:_LONGEST_METADATA] for key, text in kept.items()}
    # torch splits every entry of the stack into three and fails where there are fewer.
    stack = kept.get("nn_module_stack")
    if stack is not None and any(entry.count(",") < 2 for entry in stack.split(";")):
        del kept["nn_module_stack"]
    return kept
