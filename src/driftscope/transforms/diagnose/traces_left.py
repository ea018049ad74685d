"""What a run leaves behind: state that drifted, tensors that escaped, prints."""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from driftscope.transforms.agreement import tensors_differ
from driftscope.transforms.diagnose import syntax
from driftscope.transforms.examination import Examination, Question
from driftscope.transforms.subject import Suspicion
from driftscope.transforms.world.places import Place, place_of
from driftscope.transforms.world.reach import codes_of
from driftscope.transforms.world.snapshot import Escaped

#: How the state calls what was given to the function.
_ARGUMENT = re.compile(r"(?P<length>length of )?argument (?P<number>\d+)")


@dataclass(frozen=True)
class StateDrift:
    """One path of the state that differs after the transform."""

    path: str
    plain: str
    lifted: str
    escaped: str = ""

    @property
    def root(self) -> str:
        """The user's name at the start of the path: ``acts`` of ``acts[0]``, ``self.last`` of ``self.last``."""
        match = re.match(r"self\.\w+|[\w ]+", self.path)
        return match.group(0).strip() if match else self.path


def drifts(plain: Mapping[str, Any], lifted: Mapping[str, Any]) -> list[StateDrift]:
    """Compare two fingerprints; escaped tensors first."""
    found = []
    for path in {**plain, **lifted}:
        left, right = plain.get(path, "absent"), lifted.get(path, "absent")
        if isinstance(right, Escaped):
            found.append(StateDrift(path, _shown(left), right.kind, right.kind))
        elif isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            difference = tensors_differ(left, right)
            if not difference.agrees:
                found.append(StateDrift(path, _shown(left), _shown(right)))
        elif isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor) or left != right:
            found.append(StateDrift(path, _shown(left), _shown(right)))
    return sorted(found, key=lambda drift: (not drift.escaped, drift.path))


def state_drifts(examination: Examination) -> list[StateDrift]:
    """Return what the plain loop changes of the world, its arguments left out."""
    changed = drifts(examination.start_state, examination.loop.state)
    return [drift for drift in changed if not _ARGUMENT.match(drift.path)]


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        flat = ", ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in value.reshape(-1)[:4].tolist())
        return f"a tensor of shape {tuple(value.shape)}: {flat}{', ...' if value.numel() > 4 else ''}"
    return str(value)


def suspects_left(question: Question, examination: Examination) -> list[Suspicion]:
    """Return one suspect per name whose state drifted, per tensor that escaped, and one for prints."""
    plain, lifted = question.plain, question.lifted
    if plain.error is not None or lifted.error is not None:
        return []
    found: list[Suspicion] = []
    # A list may both hold an escaped tensor and be too short: two findings, but one of each kind per name.
    seen: set[tuple[str, bool]] = set()
    for drift in drifts(plain.state, lifted.state):
        kind = (drift.root, bool(drift.escaped))
        absent = "absent" in (drift.plain, drift.lifted) and (drift.root, True) in seen
        if kind in seen or absent or drift.plain.startswith("torch generator"):
            continue
        seen.add(kind)
        found.append(_suspect(drift, question, examination))
    if not any(s.cause == "T001" for s in found):
        found += _held_elsewhere(question, examination)
    if plain.printed != lifted.printed and not _same_lines(question):
        found.append(_printed(question, examination))
    return found


def _same_lines(question: Question) -> bool:
    """Whether both runs printed equally often: the text of a wrapped tensor differs without being another program."""
    return question.plain.printed.count("\n") == question.lifted.printed.count("\n")


def _suspect(drift: StateDrift, question: Question, examination: Examination) -> Suspicion:
    evidence = {"state": drift.path, "plain": drift.plain, "transform": drift.lifted}
    given = _ARGUMENT.match(drift.path)
    root = drift.root if given is None else _parameter(examination, int(given["number"]))
    if drift.escaped:
        place = write_place(examination, drift.root) or _escape_place(question)
        what = f"after {question.name}, {drift.path} holds {drift.escaped}"
        return Suspicion("T001", question.name, "", place, subject_name=drift.root, what=what, evidence=evidence)
    in_place = in_place_write(root, question, examination)
    place = in_place or write_place(examination, root)
    plainly = "the loop" if question.levels[0].kind == "map" else "the plain program"
    changed = drift.path
    if given is not None:
        changed = f"the {given['length'] or 'value of '}`{root}`"
        evidence["argument"] = root
    what = f"{changed} is {drift.lifted} after {question.name}, {drift.plain} after {plainly}"
    cause = "T007" if in_place is not None else "T002"
    return Suspicion(cause, question.name, "", place, subject_name=root, what=what, evidence=evidence)


def _parameter(examination: Examination, number: int) -> str:
    """The function's own name for one of its arguments."""
    code = next((f.__code__ for f in examination.subject.world.functions), None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    names = names[1:] if names[:1] == ("self",) else names
    return names[number] if number < len(names) else f"argument {number}"


def in_place_write(root: str, question: Question, examination: Examination) -> Place | None:
    """Return where an in-place torch call writes to the tensor of that name."""
    for event in question.plain.events or examination.loop.events:
        name = (
            syntax.written_name(event.place)
            if (event.in_place or event.name.endswith("(out=)")) and event.place
            else ""
        )
        if name and name == root:
            return event.place
    return None


def _escape_place(question: Question) -> Place | None:
    return next((event.place for event, _ in question.lifted.escaped if event is not None), None)


def _held_elsewhere(question: Question, examination: Examination) -> list[Suspicion]:
    """Suspect tensors that outlived the run though no name leads to them: an object of the user's must hold them."""
    import gc

    collected = False
    for event, tensor in question.lifted.escaped:
        holders = [h for h in gc.get_referrers(tensor) if _is_holder(h, question)]
        if holders and not collected:
            # Dead objects that refer to each other still hold what nothing alive holds: torch's traces are such.
            holders.clear()
            gc.collect()
            collected = True
            holders = [h for h in gc.get_referrers(tensor) if _is_holder(h, question)]
        if holders:
            kind = type(holders[0]).__name__
            what = f"after {question.name}, a {kind} still holds a tensor that only makes sense inside the transform"
            place = event.place if event is not None else None
            return [Suspicion("T001", question.name, "", place, subject_name=f"a {kind}", what=what)]
    return []


def _is_holder(holder: Any, question: Question) -> bool:
    if holder is question.lifted.escaped or any(holder is pair for pair in question.lifted.escaped):
        return False
    if isinstance(holder, (list, dict, set)):
        return holder is not vars(question.lifted)
    # tuples are frames' and caches' own; frames, cells and torch's objects do not belong to the user's state
    return False


def write_place(examination: Examination, root: str) -> Place | None:
    """Return where the user's code changes what a name holds: a store to it, or a call of one of its methods."""
    functions = examination.subject.world.functions
    for search in (_stores, _method_calls, _next_calls, _mentions):
        for function in functions:
            place = next(search(function, root), None)
            if place is not None:
                return place
    return None


def _nodes(function: FunctionType) -> Iterator[ast.AST]:
    code = function.__code__
    yield from syntax.nodes_of_function(code)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _stores(function: FunctionType, root: str) -> Iterator[Place]:
    near = place_of(function.__code__, 0)
    bare = root.split(".")[-1]
    for node in _nodes(function):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        if isinstance(node, ast.Delete):
            targets = node.targets
        for target in targets:
            owner = target.value if isinstance(target, ast.Subscript) else target
            if _text(owner) == root or (isinstance(owner, ast.Attribute) and owner.attr == bare and "." in root):
                if isinstance(owner, ast.Name) and owner is target and not _is_outer(function, root):
                    continue
                yield syntax.place_of_node(near, node)


def _is_outer(function: FunctionType, name: str) -> bool:
    return any(
        name in code.co_freevars
        or any(i.opname == "STORE_GLOBAL" and i.argval == name for i in dis.get_instructions(code))
        for code in codes_of(function.__code__)
    )


def _method_calls(function: FunctionType, root: str) -> Iterator[Place]:
    near = place_of(function.__code__, 0)
    changing = ("append", "pop", "add", "update", "extend", "insert", "remove", "clear", "popleft", "appendleft",
                "setdefault", "discard", "popitem", "reverse", "sort")  # fmt: skip
    bare = root.split(".")[-1]
    for node in _nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changing:
            owner = _text(node.func.value)
            if owner == root or owner.split(".")[-1] == bare:
                yield syntax.place_of_node(near, node)


def _next_calls(function: FunctionType, root: str) -> Iterator[Place]:
    near = place_of(function.__code__, 0)
    for node in _nodes(function):
        if isinstance(node, ast.Call) and any(_text(arg) == root for arg in (*node.args, node.func)):
            yield syntax.place_of_node(near, node)


def _mentions(function: FunctionType, root: str) -> Iterator[Place]:
    near = place_of(function.__code__, 0)
    bare = root.split(".")[-1]
    for node in _nodes(function):
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.Global, ast.Nonlocal)):
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            attributes = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            if bare in names | attributes:
                yield syntax.place_of_node(near, node)


def _printed(question: Question, examination: Examination) -> Suspicion:
    plain, lifted = question.plain.printed, question.lifted.printed
    times = f"{plain.count(chr(10))} lines by the plain program, {lifted.count(chr(10))} under {question.name}"
    place = call_place(examination, ("print", "write", "pprint"))
    return Suspicion("T003", question.name, "", place, subject_name="print", what=f"printed {times}")


def call_place(examination: Examination, names: tuple[str, ...]) -> Place | None:
    """Return the first call in the user's code of a function or method with one of the names."""
    for function in examination.subject.world.functions:
        near = place_of(function.__code__, 0)
        for node in _nodes(function):
            if isinstance(node, ast.Call):
                called = node.func
                name = (
                    called.id
                    if isinstance(called, ast.Name)
                    else called.attr
                    if isinstance(called, ast.Attribute)
                    else ""
                )
                if name in names:
                    return syntax.place_of_node(near, node)
    return None
