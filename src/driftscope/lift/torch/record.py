"""Records one native run as a flat tape of ATen calls.

The recorder stands below autograd and functorch, so it sees what kernels are called with: no gradients, no
batching, no decomposition left to do. It learns three things of every value: whether it depends on the inputs'
values, which memory it shares, and what it natively was where it depends on nothing.

In-place calls are taped in their functional form. Where no other live tensor shares the memory, the result is
simply a new value; otherwise the replay writes into memory that it shares in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.errors import CannotLift
from driftscope.lift.torch.control import call_custom, call_higher_order, seen_by
from driftscope.lift.torch.entries import (
    ATEN_NAMESPACES,
    AtenCall,
    CallPlace,
    Facts,
    Ref,
    Tape,
    facts_of,
    functional_form,
    references,
    tensors_in,
)
from driftscope.lift.torch.ledger import Ledger
from driftscope.lift.torch.native_values import listener
from driftscope.lift.torch.nested import NestedTensors
from driftscope.lift.torch.ops.rules import rule_of

# Results of these are the same tensor under another name.
_SAME = frozenset({"detach", "alias", "lift_fresh", "lift", "detach_", "resolve_conj", "resolve_neg"})
_SHAPE_ONLY = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like", "new_zeros"}
    | {"new_ones", "new_full", "new_empty", "new_empty_strided", "_shape_as_tensor"}
)
_SAMPLERS = frozenset({"bernoulli", "multinomial", "poisson", "binomial", "normal"})
# These overwrite a tensor with a sample, whatever it held.
_OVERWRITING = frozenset(
    {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"}
)
_GUARDS = ("_assert", "sym_constrain", "_functional_assert", "record_function", "_record_function")
_RESIZING = frozenset({"resize_", "set_", "resize_as_", "resize_output_", "_resize_output_"})
_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})


class Recorder(TorchDispatchMode):
    """Writes a tape of the calls made under it.

    Parameters
    ----------
    names : callable
        Gives the name of a captured tensor, None where it has none.
    place : callable
        Gives the place of the call in progress.
    provisional : bool
        Whether entries get their names later, from a graph's nodes.
    """

    def __init__(
        self, names: Callable[[torch.Tensor], str | None], place: Callable[[], CallPlace], provisional: bool = False
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        seen_by(type(self))
        self.tape = Tape()
        self.ledger = Ledger(self.tape, names, self._append_own)
        self._place = place
        self._provisional = provisional
        self._listener = listener()
        self._settled = set[int]()
        self._nested = NestedTensors(self)

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, torch's default, imports all of torch._dynamo on the first call: 3 s, to no use here.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            return call_higher_order(self, func, args, kwargs)
        facts = facts_of(func)
        if facts.name.startswith(_GUARDS):
            return func(*args, **kwargs)
        if facts.name in _SAME:
            return self._same(func, args, kwargs)
        if self._nested.concerns(facts, args):
            return self._nested.call(func, facts, args, kwargs)
        if facts.name in _RESIZING and any(self.ledger.depends(t) for t in tensors_in(args) if t is not None):
            raise CannotLift(f"aten.{facts.name} changes the memory of a value that depends on the inputs.")
        dependent = self._depends_on_inputs(facts, args, kwargs)
        # An operator with a rule is evaluated by it: where a run is edited, what the rule decides follows.
        if dependent and func.namespace not in ATEN_NAMESPACES and rule_of(facts.name, func.namespace) is None:
            followed, result = call_custom(self, func, args, kwargs)
            if followed:
                return self._seen_whole(func, result)
        call = self.encode(args), {k: self.encode(v) for k, v in kwargs.items()}
        if dependent:
            call = self._freeze(facts, args, call[0]), call[1]
            self.ledger.keep_constants(tensors_in((*args, *kwargs.values())))
        targets = _targets(facts, args, kwargs)
        for tensor in targets:
            self.ledger.before_write(tensor, dependent)
        result = func(*args, **kwargs)
        self._tape_call(func, facts, call, tensors_in(result), targets, dependent)
        self.ledger.after_write()
        return result

    def _seen_whole(self, func: Any, result: Any) -> Any:
        """Hand on what a followed operator returned, if torch saw it computed."""
        if all(t is None or self.ledger.depends(t) for t in tensors_in(result)):
            return result
        raise CannotLift(
            f"The operator {func.namespace}::{facts_of(func).name} is opaque; it computes where torch does not see it."
        )

    def settle(self, tensor: torch.Tensor, made_elsewhere: bool) -> None:
        """Take a result for one that the program's own library gives; its bits too, which calls only came close to."""
        if self._listener is None:
            return
        number = self.ledger.number_now(tensor)
        if made_elsewhere:
            self._listener.drop(self.tape, self._on_the_way_to(number))
            self._listener.keep(self.tape, [number], [tensor])
        self._settled.add(number)

    def _on_the_way_to(self, number: int) -> set[int]:
        """Values that only calls standing for the operation in progress made."""
        wanted, found = {number}, set[int]()
        for entry in reversed(self.tape.entries):
            if not wanted:
                break
            if any(o in wanted for o in entry.outputs):
                wanted.difference_update(o for o in entry.outputs if o is not None)
                wanted.update(n for n in references(entry.args, entry.kwargs) if n not in self._settled | found)
                found.update(wanted)
        return found

    # -- arguments ---------------------------------------------------------------------------------------------

    def _same(self, func: Any, args: Any, kwargs: Any) -> Any:
        if args[0].layout is not torch.strided:
            return func(*args, **kwargs)
        value = self.tape.values[self.ledger.id_of(args[0])]
        if facts_of(func).name == "lift_fresh":
            self.tape.unnamed.discard(value.id)  # a literal: torch.tensor([...])
        result = func(*args, **kwargs)
        if result._cdata != args[0]._cdata:
            self.ledger.bind(result, value)
        return result

    def encode(self, tree: Any) -> Any:
        """Put value numbers in the place of tensors."""
        if isinstance(tree, torch.Tensor):
            return Ref(self.ledger.id_of(tree))
        if isinstance(tree, (list, tuple)):
            return [self.encode(t) for t in tree]
        return tree

    def _depends_on_inputs(self, facts: Facts, args: Any, kwargs: Any) -> bool:
        given: Iterable[Any] = (*args[facts.name in _SHAPE_ONLY :], *kwargs.values())
        return any(self.ledger.depends(t) for t in tensors_in(tuple(given)) if t is not None)

    def _freeze(self, facts: Facts, args: Any, encoded: list[Any]) -> list[Any]:
        """Take boolean index masks as they natively are: they decide shapes, which the tape holds as numbers."""
        if facts.name not in _INDEXING or len(args) < 2:
            return encoded
        indices = [
            self._frozen(tensor) if tensor is not None and tensor.dtype in (torch.bool, torch.uint8) else reference
            for tensor, reference in zip(args[1], encoded[1], strict=True)
        ]
        return [encoded[0], indices, *encoded[2:]]

    def _frozen(self, tensor: torch.Tensor) -> Ref:
        if not self.ledger.depends(tensor):
            return Ref(self.ledger.id_of(tensor))
        copy = tensor.clone()
        value = self.ledger.register(copy, self.ledger.unique("mask"), dependent=False)
        self.ledger.keep(value, copy)
        return Ref(value.id)

    # -- entries -----------------------------------------------------------------------------------------------

    def _tape_call(
        self, func: Any, facts: Facts, call: Any, outputs: list[Any], targets: list[torch.Tensor], dependent: bool
    ) -> None:
        if not targets and all(t is None for t in outputs):
            return
        name = self.name(facts)
        args, kwargs = call
        function = func
        functional = functional_form(func) if targets else None
        if functional is not None:
            function, kwargs = functional, _without_out(func, kwargs)
            written = {t._cdata for t in targets}
            outputs = [t for t in outputs if t is not None and t._cdata not in written]
        if dependent and facts.name == "native_dropout" and facts.pick("train", args, kwargs) is not False:
            self._dropout(name, facts, call, outputs)
            return
        drawn = dependent and facts.name in _SAMPLERS | _OVERWRITING
        numbers, writes = self._outputs(name, outputs, targets, dependent and not drawn)
        if drawn:
            # A sample is taken as it fell: both programs of a comparison then see the same.
            self._keep_drawn(func, [*outputs, *targets])
        entry = AtenCall(
            len(self.tape.entries), name, func, function, tuple(args), kwargs, numbers,
            not dependent or drawn, self._place(), writes,
        )  # fmt: skip
        self.tape.entries.append(entry)
        if self._listener is not None and not entry.constant:
            self._listener.keep(self.tape, numbers, [*outputs, *targets])

    def _outputs(
        self, name: str, outputs: list[Any], targets: list[torch.Tensor], dependent: bool
    ) -> tuple[list[int | None], frozenset[int]]:
        """Give the numbers of an entry's results: those it returns, then those it writes."""
        numbers: list[int | None] = []
        writes = set()
        for tensor in outputs:
            label = f"{name}.{len(numbers)}" if numbers else name
            numbers.append(None if tensor is None else self.ledger.register(tensor, label, dependent).id)
        for tensor in targets:
            label = f"{name}.{len(numbers)}" if numbers else name
            if dependent and self.ledger.shared(tensor):
                self.ledger.mark_written(tensor)
                writes.add(len(numbers))
                numbers.append(self.ledger.number_now(tensor))
            else:
                numbers.append(self.ledger.register(tensor, label, dependent).id)
        return numbers, frozenset(writes)

    def _keep_drawn(self, func: Any, tensors: list[Any]) -> None:
        for tensor in tensors:
            if tensor is None:
                continue
            if facts_of(func).writes and self.ledger.shared(tensor):
                raise CannotLift(f"{func} draws into memory that others see; its sample cannot be frozen.")
            value = self.tape.values[self.ledger.number_now(tensor)]
            self.ledger.keep(value, tensor.clone() if facts_of(func).writes else tensor)

    def _dropout(self, name: str, facts: Facts, call: Any, outputs: list[Any]) -> None:
        """Tape a drawn dropout as the product that it was: with its mask, a constant, and ``1 / (1 - p)``."""
        kept = float(facts.pick("p", *call))
        mask = self.ledger.register(outputs[1], f"{name}.1", dependent=False)
        self.ledger.keep(mask, outputs[1])
        result = self.ledger.register(outputs[0], name, dependent=True)
        scale = 0.0 if kept == 1.0 else 1.0 / (1.0 - kept)
        product = torch.ops.aten.native_dropout_backward.default
        self._append_own(name, product, (call[0][0], Ref(mask.id), scale), [result.id], False)

    def _append_own(
        self, name: str, function: Any, args: tuple[Any, ...], outputs: list[int | None], constant: bool
    ) -> None:
        entry = AtenCall(len(self.tape.entries), name, function, function, args, {}, outputs, constant, self._place())
        self.tape.entries.append(entry)

    def append(self, func: Any, name: str, args: tuple[Any, ...], outputs: list[int | None], constant: bool) -> None:
        """Put a call on the tape that stands for another one."""
        self._append_own(name, func, args, outputs, constant)

    def name(self, facts: Facts) -> str:
        """Give the next entry its name."""
        return self.ledger.unique(f"~{facts.name}" if self._provisional else facts.name)

    def rename(self, first: int, name: str) -> None:
        """Name the entries from `first` on that have no node's name yet: the last is the node's result."""
        entries = [e for e in self.tape.entries[first:] if e.name.startswith("~")]
        last = entries[-1] if entries else None
        for entry in entries:
            new = self.ledger.unique(name if entry is last else f"{name}.{entry.facts.name}")
            for number in entry.outputs:
                value = None if number is None else self.tape.values[number]
                if value is not None and (value.name == entry.name or value.name.startswith(f"{entry.name}.")):
                    value.name = new + value.name[len(entry.name) :]
            entry.name = new


def _targets(facts: Facts, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """List the tensors that a call writes to."""
    if not facts.writes:
        return []
    if "training" in facts.types and not facts.pick("training", args, kwargs):
        return []
    picked = [facts.pick(name, args, kwargs) for name in facts.writes]
    return [t for t in tensors_in(picked) if t is not None]


def _without_out(operator: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    out = {a.name for a in operator._schema.arguments if a.kwarg_only and a.alias_info is not None}
    return {k: v for k, v in kwargs.items() if k not in out}
