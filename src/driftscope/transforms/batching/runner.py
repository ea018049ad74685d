"""One batched function: each call is run as its plan says, and every run must keep to what was proved."""

from __future__ import annotations

import operator
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.programs import pytrees as pytree
from driftscope.programs.state.printing import caught
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching.audit import Audit
from driftscope.transforms.batching.call import BatchedCall, Request, run_loop
from driftscope.transforms.batching.guard import Guarded
from driftscope.transforms.batching.memory import (
    CallPlan,
    CallSketch,
    Known,
    Repeated,
    Signature,
    plans_of,
    signature_of,
    sketch_of,
)
from driftscope.transforms.batching.paths import by_path, same_as_loop
from driftscope.transforms.batching.refusal import refuse_random, refuse_written
from driftscope.transforms.batching.results import put_together
from driftscope.transforms.batching.structures import closed
from driftscope.transforms.batching.trial import other_generators, put_back_generators, try_out
from driftscope.transforms.world.captured import Captured
from driftscope.transforms.world.places import is_own_mistake

#: A run that did not keep to what was proved: nothing of it is returned.
_STRAYED = object()

#: Kinds of calls that one ``ds.vmap(function)`` recognises without reading all of them anew.
_MOST_REPEATED = 64


class CallRunner:
    """Runs the calls of one ``ds.vmap(function)``.

    Parameters
    ----------
    request : Request
    audit : Audit
    """

    def __init__(self, request: Request, audit: Audit):
        self.request = request
        self.audit = audit
        self.plans = plans_of(request)
        self.captured: Captured | None = None
        self.repeated: dict[Any, Repeated] = {}
        self.seen: set[Any] = set()

    def theirs(self, function: Any) -> Any:
        """Map a function with ``torch.vmap`` under the options that were asked for."""
        wanted = self.request
        return torch.vmap(function, wanted.in_dims, wanted.out_dims, wanted.randomness, chunk_size=wanted.chunk_size)

    def opened(self, arguments: tuple[Any, ...], keywords: dict[str, Any], sketch: CallSketch | None = None) -> Any:
        """Run one call; its result is open to torch's trees."""
        call = BatchedCall.read(self.request, arguments, keywords)
        if any(map(internals.is_fake, call.tensors)) or not call.size:
            return self.without_values(call)
        inside = any(map(internals.is_mapped, call.tensors))
        signature = (inside, *signature_of(call))
        self.read(call)
        known = self.plans.get(signature)
        if known is None or (known.plan is not CallPlan.TORCH and self.now.key not in known.proved):
            with internals.unhooked():
                known = self.learn(call, signature)
        if inside:
            return self.inside_another(call, signature, known)
        rows = self.audit.chosen(call.size) if known is not None and known.plan in _BATCHED and not known.draws else []
        result = self.under_hooks(call, known) if internals.saving_hooked() else self.as_planned(call, signature, known)
        if rows and known is not None and known.plan in _BATCHED:
            self.audit.check(call, result, rows)
        if sketch is not None and known is not None:
            self.remember(call, sketch, known)
        return result

    def run(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run one call; what it returns is of the user's classes."""
        whole = bool(keywords or self.audit.share or self.request.chunk_size)
        sketch = None if whole else sketch_of(self.request, arguments)
        before = None if sketch is None else self.repeated.get(sketch.key)
        if sketch is None or before is None:
            return closed(self.opened(arguments, keywords, sketch))
        result = self.again(before, sketch) if before.holds(sketch) else _STRAYED
        return closed(self.opened(arguments, keywords, sketch) if result is _STRAYED else result)

    def again(self, before: Repeated, sketch: CallSketch) -> Any:
        """Run a call like one before it, along the steps that were proved."""
        guarded = Guarded(self.request.opening)  # what draws is not remembered
        try:
            result = internals.flat_vmap(guarded, sketch.leaves, before.layout)
        except Exception:  # it is run anew, and raises there if it is not another road
            before.captured.restore()
            return _STRAYED
        if guarded.steps() not in before.known.steps:
            before.captured.restore()
            return _STRAYED
        return _of_its_own(result, sketch.leaves)

    def remember(self, call: BatchedCall, sketch: CallSketch, known: Known) -> None:
        """Recognise calls like this one from the second time on, which few functions see."""
        alike = len(call.leaves) == len(sketch.leaves) and all(map(operator.is_, call.leaves, sketch.leaves))
        proved = known.plan is CallPlan.TORCH and not known.draws and self.now.key in known.proved
        if not alike or not proved or self.now.changed():
            return
        if sketch.key not in self.seen:
            self.seen.add(sketch.key)
            return
        if len(self.seen) > _MOST_REPEATED:
            self.seen.clear()
            self.repeated.clear()
        flat = all(child.is_leaf() for child in pytree.children_of(call.spec))
        wanted = self.request
        layout = internals.BatchLayout(
            call.size, call.dims, None if flat else call.spec, wanted.out_dims, wanted.randomness
        )
        captured = Captured(wanted.function)
        if captured.whole and captured.reached.isdisjoint(sketch.things):
            self.repeated[sketch.key] = Repeated(known, captured, layout)

    def read(self, call: BatchedCall) -> None:
        """Read what the function has captured, anew where it changed since the last call."""
        others = not all(isinstance(argument, torch.Tensor) for argument in call.given)
        if self.captured is None or others or self.captured.changed():
            self.captured = Captured(self.request.function, call.given)
        self.captured.mark()

    @property
    def now(self) -> Captured:
        """What the function had captured when this call began."""
        assert self.captured is not None
        return self.captured

    def learn(self, call: BatchedCall, signature: Signature) -> Known | None:
        """Try the function and remember what was found; None where it raises by itself."""
        known = try_out(call, self.theirs)
        if known is not None:
            before = self.plans.get(signature)
            if before is not None and before.plan is known.plan is CallPlan.TORCH:
                known.steps.update(before.steps)
            known.proved.add(self.now.key)
            self.plans[signature] = known
        return known

    def as_planned(self, call: BatchedCall, signature: Signature, known: Known | None) -> Any:
        """Run a call as its plan says; what strays from it is tried anew, then run by the loop."""
        if known is not None and known.plan is CallPlan.TORCH:
            result = self.follow(call, known)
            if result is _STRAYED:
                known = self.learn(call, signature)
                result = self.follow(call, known) if known is not None and known.plan is CallPlan.TORCH else _STRAYED
            if result is not _STRAYED:
                return _of_its_own(result, call.tensors)
        if known is not None and known.plan in (CallPlan.PATHS, CallPlan.VERIFIED_PATHS):
            result = self.by_groups(call, known)
            if result is not _STRAYED:
                known.plan = CallPlan.VERIFIED_PATHS
                return _of_its_own(result, call.tensors)
        return self.looped(call, known)

    def under_hooks(self, call: BatchedCall, known: Known | None) -> Any:
        """Run where hooks take what is saved: a checkpoint counts it, and runs the call again to the same count.

        A run that strays has saved something by then, so whether it strays is found out where nothing is hooked.
        """
        if known is not None and known.plan is CallPlan.TORCH and not known.draws:
            with internals.unhooked():
                strays = self.follow(call, known) is _STRAYED
            if not strays:
                result = self.theirs(Guarded(self.request.opening))(*call.given, **call.keywords)
                return _of_its_own(result, call.tensors)
        return self.looped(call, known)

    def follow(self, call: BatchedCall, known: Known) -> Any:
        """Run ``torch.vmap`` along the steps that were proved; a run that strays has drawn nothing."""
        # Where draws decide the way, those that stray would be thrown away and drawn again until one does not.
        state = torch.get_rng_state() if self.request.randomness != "error" else None
        result = self._followed(call, known)
        if result is _STRAYED and state is not None:
            torch.set_rng_state(state)
        return result

    def _followed(self, call: BatchedCall, known: Known) -> Any:
        guarded, now = Guarded(self.request.opening), self.now
        fresh = now.key not in known.proved
        drawn = other_generators() if fresh else None
        try:
            result = self.theirs(guarded)(*call.given, **call.keywords)
        except Exception as error:  # other values took another road, where the loop may pass
            now.restore()
            if is_own_mistake(error):
                raise
            return _STRAYED
        if guarded.steps() not in known.steps:
            now.restore()
            return _STRAYED
        if fresh:
            if now.changed(written=True) or drawn != other_generators():
                now.restore()
                return _STRAYED
            known.proved.add(now.key)
        return result

    def by_groups(self, call: BatchedCall, known: Known) -> Any:
        """Run the examples that decide alike together; a way that changes state is left to the loop."""
        now, drawn = self.now, other_generators()
        state = torch.get_rng_state()
        with caught() as printed:
            pieces = by_path(call)
            right = not isinstance(pieces, CallPlan) and same_as_loop(call, pieces, first=known.plan is CallPlan.PATHS)
        if now.changed(written=True) or printed.getvalue() or drawn != other_generators():
            if now.written():
                raise refuse_written(call)
            now.restore()
            put_back_generators(drawn)
            right = False
        if right and not isinstance(pieces, CallPlan):
            return put_together(pieces, call.size, self.request.shape)
        torch.set_rng_state(state)
        known.plan = pieces if isinstance(pieces, CallPlan) else CallPlan.LOOP
        return _STRAYED

    def looped(self, call: BatchedCall, known: Known | None) -> Any:
        """Run one example after another."""
        plan = known.plan if known is not None else CallPlan.LOOP
        state = torch.get_rng_state()
        pieces = run_loop(call, writing=plan is CallPlan.WRITING_LOOP)
        if self.request.randomness == "error" and not torch.equal(state, torch.get_rng_state()):
            torch.set_rng_state(state)
            raise refuse_random(call, None)
        return put_together(pieces, call.size, self.request.shape)

    def without_values(self, call: BatchedCall) -> Any:
        """Run a call that cannot be tried: no example in it, or tensors of tracing, which have no values."""
        guarded = Guarded(self.request.opening)
        try:
            result = self.theirs(guarded)(*call.given, **call.keywords)
        except Exception as error:
            if call.size or not guarded.hazard or is_own_mistake(error):
                raise  # what stops a tracer is for the tracer to read
            raise self.without_value(call, guarded) from error
        if guarded.hazard:
            raise self.without_value(call, guarded)
        return result

    def without_value(self, call: BatchedCall, guarded: Guarded) -> InputError:
        """Return the refusal of a function that decides by values where there are none."""
        why = "a batch of no examples" if not call.size else "a traced batch"
        return InputError(
            f"{guarded.__name__} cannot be batched over {why}: {guarded.hazard}, and there is no value to decide by; "
            f"give at least one example, outside of tracing"
        )

    def inside_another(self, call: BatchedCall, signature: Signature, known: Known | None) -> Any:
        """Run under another vmap: values belong to it, so only what ``torch.vmap`` does right can be done here."""
        if known is not None and known.plan is CallPlan.TORCH:
            result = self.follow(call, known)
            if result is not _STRAYED:
                return result
        name = internals.name_of(self.request.function)
        raise InputError(
            f"ds.vmap({name}) stands inside another vmap, which maps the values that {name} decides by, and torch.vmap "
            f"alone does not give what the loop gives; map the outer axis with ds.vmap as well"
        )


_BATCHED = (CallPlan.TORCH, CallPlan.PATHS, CallPlan.VERIFIED_PATHS)


def _of_its_own(result: Any, given: list[Any]) -> Any:
    """Return results in memory of their own, as the loop's are: neither the batch's nor shared by the examples."""

    def owned(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.is_nested:
            return leaf
        strides = leaf.stride()
        shared = 0 in strides and any(not stride and size > 1 for stride, size in zip(strides, leaf.shape, strict=True))
        shared = shared or internals.in_memory_of(leaf, given)
        return leaf.clone(memory_format=torch.contiguous_format) if shared else leaf

    return owned(result) if isinstance(result, torch.Tensor) else internals.tree_map(owned, result)
