"""The constants of a tape: which there are, what they are called, and what replacing one re-evaluates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from driftscope.errors import CannotLift
from driftscope.lift.formulas.normalisations import RENORM_EPSILON
from driftscope.lift.steps import Constant, Origin, constant_of, use_of
from driftscope.lift.torch.entries import UNINITIALISED, AtenCall, Ref, Tape, TensorValue, references
from driftscope.records.finding import Where

# Numbers that stand for "nothing added": as candidates for a rounded constant they would only be noise.
_NEUTRAL = {"alpha": 1, "beta": 1, "value": None, "scale": 1, "input_scale": 1}
_COUNTED = frozenset({"p", "dropout_p", "momentum", "exponential_average_factor", "correction", "ord"})

# Elements that a part of a weight may have to be evaluated as a table: query, key and value of a large one are not.
_SHOWN = 1 << 20


class Constants:
    """The constants of one tape."""

    def __init__(self, tape: Tape):
        self._tape = tape
        self._users = _users(tape)
        self._makers = {o: e for e in tape.entries for o in e.outputs if o is not None}
        self._values: dict[str, int] = {}
        self._literals: dict[str, tuple[int, str]] = {}
        self.listed: list[Constant] = []
        self._list_values()
        self._list_literals()

    def _list_values(self) -> None:
        for value in list(self._tape.values):
            self._keep_base(value)
        frontier = _frontier(self._tape)
        captured = set(self._tape.captured)
        for value in self._tape.values:
            if value.stored is None or value.id in self._tape.inputs or value.name in self._values:
                continue
            if value.stored.is_meta:
                continue  # forward derivatives make tensors for their shapes alone
            maker = self._makers.get(value.id)
            base = self._base_of(value)
            if maker is not None and maker.facts.name in UNINITIALISED and maker.index not in self._tape.folded:
                continue  # memory that is written later: what it held is no constant
            if value.id not in captured and base is not None and base.stored is not None:
                continue
            self._values[value.name] = value.id
            origin = Origin.WEIGHT if value.id in captured else Origin.COMPUTED
            users = self._users.get(value.id, [])
            where = users[0].where if users else maker.where if maker is not None else Where()
            readers = tuple(user.name for user in users)
            self.listed.append(Constant(value.name, value.stored, origin, where, value.id in frontier, readers))

    def _base_of(self, value: TensorValue) -> TensorValue | None:
        """Give the constant that a constant view is a view of."""
        maker = self._makers.get(value.id)
        if maker is None or not maker.constant or not maker.facts.view:
            return None
        sources = references(maker.args, maker.kwargs)
        return self._tape.values[sources[0]] if sources else None

    def _keep_base(self, value: TensorValue) -> None:
        """Let a kept view keep what it is a view of: that is the constant a person knows."""
        while value.stored is not None and (base := self._base_of(value)) is not None:
            same = base.format == value.format and base.storage == value.storage
            if base.stored is None and same and not value.copied:
                base.stored = value.stored.as_strided(base.shape, base.strides, base.offset)
                if self._makers[value.id].facts.name == "_conj":
                    base.stored = base.stored.conj()
            value = base

    def _list_literals(self) -> None:
        for entry in self._tape.entries:
            for argument, number in numbers_of(entry, self._tape).items():
                name = f"{entry.name}.{argument}"
                self._literals[name] = (entry.index, argument)
                value = torch.tensor(number, dtype=torch.float64)
                self.listed.append(Constant(name, value, Origin.LITERAL, entry.where, not entry.constant))

    def resolve(
        self, replace: Mapping[str, torch.Tensor]
    ) -> tuple[dict[int, torch.Tensor], dict[tuple[int, str], torch.Tensor], set[int]]:
        """Turn replacements by name into values, numbers, and constant entries to evaluate again.

        Raises
        ------
        CannotLift
            If a name is unknown or a shape differs.
        """
        values, literals = self.named(replace)
        return values, literals, self._activated(set(values), {index for index, _ in literals})

    def named(
        self, replace: Mapping[str, torch.Tensor]
    ) -> tuple[dict[int, torch.Tensor], dict[tuple[int, str], torch.Tensor]]:
        """Turn replacements by name into values and numbers.

        Raises
        ------
        CannotLift
            If a name is unknown or a shape differs.
        """
        values: dict[int, torch.Tensor] = {}
        literals: dict[tuple[int, str], torch.Tensor] = {}
        for name, tensor in replace.items():
            constant = name if name in self._literals else constant_of(name)
            if constant in self._values:
                value = self._tape.values[self._values[constant]]
                if tuple(tensor.shape) != value.shape:
                    raise CannotLift(
                        f"The constant {constant} has shape {value.shape}, its replacement {tuple(tensor.shape)}."
                    )
                if constant == name:
                    values[value.id] = tensor
                else:
                    literals.update(self._read(name, value.id, tensor))
            elif name in self._literals:
                literals[self._literals[name]] = tensor
            elif name in (inputs := {self._tape.values[n].name: n for n in self._tape.inputs}):
                values[inputs[name]] = tensor  # what the program was given, of the same shape
            else:
                raise CannotLift(f"The program has no constant named {name!r}.")
        return values, literals

    def _read(self, use: str, number: int, tensor: torch.Tensor) -> dict[tuple[int, str], torch.Tensor]:
        """Turn the replacement of what one step reads of a constant into an argument of that step.

        Raises
        ------
        CannotLift
            If that step reads the constant otherwise than as an argument of its own, or a view of it.
        """
        readers = [e for e in self._users.get(number, []) if use == use_of(self._tape.values[number].name, e.name)]
        found: dict[tuple[int, str], torch.Tensor] = {}
        for reader, argument in ((r, a) for r in readers for a in r.facts.types):
            given, views = reader.argument(argument), list[tuple[AtenCall, int]]()
            while isinstance(given, Ref) and given.value != number:
                base = self._base_of(self._tape.values[given.value])
                if base is None:
                    break
                maker = self._makers[given.value]
                views.insert(0, (maker, maker.outputs.index(given.value)))
                given = Ref(base.id)
            if not isinstance(given, Ref) or given.value != number:
                continue
            seen = tensor
            for view, result in views:
                if view.facts.name == "as_strided" or view.kwargs:
                    raise CannotLift(f"{reader.name} reads {use} by its memory.")
                shown = view.function(*(seen if isinstance(a, Ref) else a for a in view.args))
                seen = shown[result] if isinstance(shown, (list, tuple)) else shown  # one of several parts
            found[reader.index, argument] = seen
        if not found:
            raise CannotLift(f"It cannot be replaced alone: {use}.")
        return found

    def subgraphs(self) -> list[AtenCall]:
        """List the constant entries that compute something, and the views before and after them, in order.

        A view of a part, or one that repeats elements, counts as well: a file stores what it shows as a tensor.
        """
        candidates = [
            e for e in self._tape.entries
            if e.constant and not e.random and e.index not in self._tape.folded
        ]  # fmt: skip
        made: set[int | None] = set()
        chosen = set()
        for entry in candidates:
            read = references(entry.args, entry.kwargs)
            if not entry.facts.view or any(r in made for r in read) or self._shows_another_number(entry, read):
                chosen.add(entry.index)
                made.update(entry.outputs)
        needed: set[int] = set()
        for entry in reversed(candidates):
            if entry.index in chosen or any(o in needed for o in entry.outputs):
                chosen.add(entry.index)
                needed.update(references(entry.args, entry.kwargs))
        return [e for e in candidates if e.index in chosen]

    def _shows_another_number(self, view: AtenCall, read: Sequence[int]) -> bool:
        """Whether a view shows fewer or more elements than what it is a view of, and not too many."""
        counts = [math.prod(self._tape.values[o].shape) for o in view.outputs if o is not None]
        base = math.prod(self._tape.values[read[0]].shape) if read else 0
        return bool(counts) and max(counts) <= _SHOWN and any(count != base for count in counts)

    def _activated(self, changed: set[int], indices: set[int]) -> set[int]:
        """Find the constant entries that depend on a replaced constant, and what they need that was not kept."""
        active: set[int] = set()
        if not changed and not indices:
            return active
        replaced = set(changed)
        for entry in self._tape.entries:
            if not entry.constant or entry.random:
                continue
            if entry.index in indices or any(r in changed for r in references(entry.args, entry.kwargs)):
                kept = [o for o in entry.outputs if o is not None and o not in changed]
                if not kept and all(o is None or o in replaced for o in entry.outputs):
                    continue
                if entry.index in self._tape.folded:
                    raise CannotLift(
                        f"{entry.where} writes a constant into memory that others see; what depends on it "
                        "cannot be evaluated with another value."
                    )
                active.add(entry.index)
                changed.update(kept)
        return self._with_sources(active, replaced)

    def _with_sources(self, active: set[int], replaced: set[int]) -> set[int]:
        """Add the entries that make what active ones use and the recording did not keep."""
        needed: set[int] = set()
        for entry in reversed(self._tape.entries):
            if entry.index not in active and not (entry.constant and any(o in needed for o in entry.outputs)):
                continue
            active.add(entry.index)
            for number in references(entry.args, entry.kwargs):
                if self._tape.values[number].stored is None and number not in replaced:
                    needed.add(number)
        return active


def _users(tape: Tape) -> dict[int, list[AtenCall]]:
    """Find the entries that use each value, through views of it."""
    users: dict[int, list[AtenCall]] = {}
    for entry in tape.entries:
        for number in set(references(entry.args, entry.kwargs)):
            users.setdefault(number, []).append(entry)
    for entry in reversed(tape.entries):
        if entry.constant and entry.facts.view:
            beyond = [user for o in entry.outputs if o is not None for user in users.get(o, [])]
            for number in references(entry.args, entry.kwargs) if beyond else ():
                users[number] = [user for each in users[number] for user in (beyond if each is entry else [each])]
    return users


def _frontier(tape: Tape) -> set[int]:
    """Find the constants that dependent entries use, directly or through views."""
    frontier: set[int] = set()
    for entry in reversed(tape.entries):
        direct = not entry.constant
        through = entry.facts.view and any(o in frontier for o in entry.outputs)
        if direct or through:
            frontier.update(references(entry.args, entry.kwargs))
    return frontier


def numbers_of(entry: AtenCall, tape: Tape) -> dict[str, float]:
    """List the numbers of a call that enter its result as reals, hidden ones included."""
    facts = entry.facts
    found: dict[str, float] = {}
    for name, type_ in facts.types.items():
        value = entry.argument(name)
        if name in _COUNTED or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        real = "number" in type_ or "float" in type_ or (type_ in ("Tensor", "Optional[Tensor]"))
        if not real or "List" in type_ or (entry.constant and not isinstance(value, float)):
            continue
        if name in _NEUTRAL and value == _NEUTRAL[name]:
            continue
        found[name] = float(value)
    return found | {k: v for k, v in _hidden(entry, tape).items() if k not in found}


def _hidden(entry: AtenCall, tape: Tape) -> dict[str, float]:
    """List the constants that a fused kernel holds."""
    name = entry.facts.name
    if entry.constant:
        return {}
    found: dict[str, float] = {}
    if "upsample" in name and entry.argument("scale_factors"):
        found |= {f"scale_factors[{k}]": float(v) for k, v in enumerate(entry.argument("scale_factors"))}
    if name == "gelu" or (name == "_transformer_encoder_layer_fwd" and entry.argument("use_gelu")):
        tanh = name == "gelu" and entry.argument("approximate") == "tanh"
        found |= {"sqrt_2_over_pi": math.sqrt(2 / math.pi), "cubic": 0.044715} if tanh else {"sqrt_2": math.sqrt(2)}
    if name.removesuffix("_") in ("hardsigmoid", "hardswish"):
        found["slope"] = 1 / 6
    if name.removesuffix("_") == "renorm":
        found["epsilon"] = RENORM_EPSILON
    if name.startswith(("_scaled_dot_product", "scaled_dot_product")) and entry.argument("scale") is None:
        width = tape.values[entry.argument("query").value].shape[-1]
        # Exporters scale queries and keys by the root, and store that.
        found |= {"scale": width**-0.5, "scale_root": width**-0.25}
    if name in ("_transformer_encoder_layer_fwd", "_native_multi_head_attention"):
        heads = entry.argument("num_heads") or entry.argument("num_head")
        found["scale"] = (entry.argument("embed_dim") / heads) ** -0.5
    return found
