"""Every private name of torch this room uses, in one place. Read in torch 2.13.0."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch._compile import _disable_dynamo
from torch._functorch import pyfunctorch
from torch._functorch import vmap as vmap_rules
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.overrides import resolve_name

from driftscope.programs import pytrees as pytree

stack_depth: Callable[[], int] = functorch.get_dynamic_layer_stack_depth
fallback_enabled: Callable[[], bool] = functorch._is_vmap_fallback_enabled  # type: ignore[attr-defined]
tree_map: Callable[..., Any] = pytree.tree_map
tree_leaves: Callable[[Any], list[Any]] = pytree.tree_leaves
tree_flatten: Callable[[Any], tuple[list[Any], Any]] = pytree.tree_flatten
tree_unflatten: Callable[[Any, Any], Any] = pytree.tree_unflatten
broadcast_to: Callable[[Any, Any], list[Any] | None] = pytree.broadcast_to_and_flatten
#: Switches that a TorchFunctionMode sees: ``with torch.no_grad()`` turns one back on its way out, whatever was raised.
SWITCHES: frozenset[Any] = frozenset({torch._C._set_grad_enabled, torch._C._set_multithreading_enabled})
#: Functions of torch.nn that are no Python: what ``torch.nn.functional`` calls, or is.
NN: Any = torch._C._nn
set_fallback_enabled: Callable[[bool], None] = functorch._set_vmap_fallback_enabled  # type: ignore[attr-defined]


@dataclass(frozen=True)
class BatchLayout:
    """How a call of ``torch.vmap`` is laid out.

    Parameters
    ----------
    size : int
        Number of examples.
    dims : list of int or None
        Mapped axis of each leaf of the arguments.
    spec : TreeSpec or None
        Structure of the arguments; None where each is a leaf.
    out_dims, randomness
        As for ``torch.vmap``.
    """

    size: int
    dims: list[int | None]
    spec: Any
    out_dims: Any
    randomness: str


wrapped_by_functorch: Callable[[torch.Tensor], bool] = functorch.is_functorch_wrapped_tensor
_aliases: Callable[[torch.Tensor, torch.Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]
#: What torch.vmap knows as ``randomness``.
RANDOMNESS = ("error", "different", "same")
_OF_TORCH = (torch.Tensor, torch.nn.Parameter)


def unwind(depth: int) -> None:
    """Drop functorch levels above ``depth``; a level that is left behind makes later calls of torch fail."""
    if stack_depth() > depth:
        functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def warm() -> None:
    """Let torch import what its transforms import on first use: a time limit must not cut an import in half."""
    torch.vmap(torch.func.grad(torch.sin))(torch.zeros(1))


@functools.cache
def accelerated() -> bool:
    """Whether this machine has a device other than the processor, with generators of its own."""
    return torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()


def forget_compiled() -> None:
    """Forget what Dynamo compiled: its limit of recompilations counts per code object, whatever was compiled."""
    torch._dynamo.reset()


def unseen() -> Any:
    """Return a context in which TorchFunctionModes do not see the calls."""
    return torch._C.DisableTorchFunction()


def forward_mode_open() -> bool:
    """Whether a level of forward-mode derivatives is open, asked of the engine: Python's own count can be wrong."""
    try:
        torch._C._exit_dual_level(level=torch._C._enter_dual_level())
    except RuntimeError:
        return True
    return False


def close_forward_mode() -> None:
    """Close the one level there can be; every later forward-mode derivative of the process would fail otherwise."""
    torch._C._exit_dual_level(level=0)
    forward_ad._current_level = -1


def mode_depths() -> tuple[int, int]:
    """Return how many TorchFunctionModes and TorchDispatchModes are active."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def pop_modes(depths: tuple[int, int]) -> None:
    """Leave the modes entered since ``depths`` was read."""
    while torch._C._len_torch_function_stack() > depths[0]:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > depths[1]:
        torch._C._pop_torch_dispatch_stack()


def is_wrapped(tensor: object) -> bool:
    """Whether a tensor only makes sense inside a transform: a functorch wrapper or a FakeTensor."""
    if isinstance(tensor, FakeTensor):
        return True
    return isinstance(tensor, torch.Tensor) and bool(functorch.is_functorch_wrapped_tensor(tensor))


def is_fake(tensor: object) -> bool:
    """Whether a tensor is one of tracing's, without values."""
    return isinstance(tensor, FakeTensor)


def is_of_torch(tensor: object) -> bool:
    """Whether an object is a tensor of torch's own classes."""
    return type(tensor) in _OF_TORCH


def is_plain(tensor: object) -> bool:
    """Whether an object is a tensor as torch itself makes them, outside of any transform."""
    return isinstance(tensor, torch.Tensor) and is_of_torch(tensor) and not wrapped_by_functorch(tensor)


def wrapper_kind(tensor: torch.Tensor) -> str:
    """Name the transform a wrapped tensor belongs to, in words."""
    if isinstance(tensor, FakeTensor):
        return "a FakeTensor of tracing, without values"
    if functorch.is_batchedtensor(tensor):
        return "a tensor mapped by vmap"
    if functorch.is_gradtrackingtensor(tensor):
        return "a tensor tracked by a derivative"
    return "a wrapped tensor"


@contextmanager
def beneath_transforms() -> Iterator[None]:
    """Run torch on the values under the wrappers: no functorch level sees the calls."""
    with torch._C._DisableFuncTorch(), torch._C.DisableTorchFunction():
        yield


def peel(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the plain tensor under the wrappers and how many mapped axes it has, moved to the front.

    Must run inside :func:`beneath_transforms`. The result shares memory with ``tensor``.
    """
    if not functorch.is_functorch_wrapped_tensor(tensor):
        return tensor, 0
    inner, mapped = peel(functorch.get_unwrapped(tensor))
    if not functorch.is_batchedtensor(tensor):
        return inner, mapped
    # The mapped axis counts the inner tensor's own axes, and those stand behind the axes moved so far.
    return inner.movedim(mapped + functorch.maybe_get_bdim(tensor), mapped), mapped + 1


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether vmap maps the tensor at some level."""
    if not functorch.is_functorch_wrapped_tensor(tensor):
        return False
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


#: Names of torch's own functions; torch takes longer to look a name up than most functions take to run.
_NAMES: dict[Any, str] = {}


def torch_name(function: Any) -> str:
    """Name a torch function as a user would: ``"torch.add"``, ``"Tensor.add_"``."""
    known: str = _NAMES.get(function) or resolve_name(function) or ""
    if known:
        _NAMES[function] = known
    name: str = known or getattr(function, "__qualname__", "") or getattr(function, "__name__", "")
    return name.removeprefix("torch.") if name.startswith("torch.Tensor.") else name


# --- what splitting a batch by path needs ------------------------------------------------------------------------


def peel_level(tensor: torch.Tensor, level: int) -> tuple[torch.Tensor, bool, bool] | None:
    """Take every wrapper off a tensor that at most one vmap maps, the one at ``level``.

    Returns
    -------
    tuple of Tensor, bool, bool, or None
        The detached value, its mapped axis in front where it has one; whether it is mapped; whether a derivative of
        it is wanted. None when another vmap maps it, since then it has no value of its own here.
    """
    mapped, tracked = None, False
    with beneath_transforms():
        while functorch.is_functorch_wrapped_tensor(tensor):
            if functorch.is_batchedtensor(tensor):
                if functorch.maybe_get_level(tensor) != level or mapped is not None:
                    return None
                mapped = functorch.maybe_get_bdim(tensor)
            else:
                tracked = True
            tensor = functorch.get_unwrapped(tensor)
        tracked = tracked or tensor.requires_grad
        value = tensor.detach()
        return (value if mapped is None else value.movedim(mapped, 0)), mapped is not None, tracked


def wants_derivative(tensor: torch.Tensor) -> bool:
    """Whether a derivative of the tensor may be asked for, at any level of transforms around it."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        if not functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def forward_wanted() -> bool:
    """Whether a forward-mode derivative is being taken."""
    levels = functorch.get_interpreter_stack() or ()
    return forward_ad._current_level >= 0 or any("Jvp" in str(level.key()) for level in levels)


def example_requires_grad(tensor: torch.Tensor) -> bool:
    """Whether an example of a mapped tensor would say ``requires_grad``; the mapped tensor itself never does."""
    return bool(functorch.get_unwrapped(tensor).requires_grad)


@contextmanager
def without_own_modes(own: tuple[type, ...]) -> Iterator[None]:
    """Run a block with the TorchFunctionModes of these classes left; they return afterwards, in their order."""
    kept = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    for _ in kept:
        torch._C._pop_torch_function_stack()
    others = [mode for mode in kept if not isinstance(mode, own)]
    for mode in others:
        torch._C._push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        for _ in others:
            torch._C._pop_torch_function_stack()
        for mode in kept:
            torch._C._push_on_torch_function_stack(mode)


def memory_of(tensor: torch.Tensor) -> int:
    """Identify the memory of a tensor, under whatever wrappers."""
    with beneath_transforms():
        value = peel(tensor)[0]
        return int(value.untyped_storage()._cdata) if value.layout == torch.strided else -id(value)


def in_memory_of(tensor: torch.Tensor, others: list[Any]) -> bool:
    """Whether a tensor lies in the memory of one of others, under whatever wrappers."""
    tensors = [other for other in others if isinstance(other, torch.Tensor)]
    if not stack_depth():
        return any(map(functools.partial(_aliases, tensor), tensors))
    return memory_of(tensor) in map(memory_of, tensors)


def outside_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ``torch.compile`` calls as it is, leaving its graph."""
    left: Callable[..., Any] = _disable_dynamo(function)
    return left


def setting() -> tuple[Any, ...]:
    """Return what of torch's state changes how a function runs: the transforms around it, grad mode, dtypes, modes."""
    levels = tuple(str(level.key()) for level in functorch.get_interpreter_stack() or ())
    return (
        levels,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        forward_ad._current_level >= 0,
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._len_torch_function_stack(),
    )


def current_level() -> int:
    """Return the number of the innermost transform, 0 outside of any."""
    return functorch.maybe_current_level() or 0


def map_over(rows: torch.Tensor, level: int) -> torch.Tensor:
    """Make the first axis of a plain tensor the one that the vmap at ``level`` maps."""
    wrapped: torch.Tensor = functorch._add_batch_dim(rows, 0, level)
    return wrapped


def read_arguments(
    function: Any, in_dims: Any, arguments: tuple[Any, ...]
) -> tuple[int, list[int | None], list[Any], Any]:
    """Check and flatten arguments as ``torch.vmap`` does, with its own errors: size, axes, leaves, structure."""
    size, dims, leaves, spec = vmap_rules._process_batched_inputs(in_dims, arguments, function)
    return size, list(dims), list(leaves), spec


def maps_nothing() -> bool:
    """Whether no transform, and nothing that sees the calls of torch below them, is active."""
    return not functorch.get_dynamic_layer_stack_depth() and not torch._C._len_torch_dispatch_stack()


def flat_vmap(function: Any, leaves: list[Any], layout: BatchLayout) -> Any:
    """Do what ``torch.vmap`` does once it has read its arguments: see ``_flat_vmap`` there."""
    level = functorch._vmap_increment_nesting(layout.size, layout.randomness)
    try:
        pairs = zip(leaves, layout.dims, strict=True)
        given = [leaf if dim is None else functorch._add_batch_dim(leaf, dim, level) for leaf, dim in pairs]
        result = function(*(given if layout.spec is None else tree_unflatten(given, layout.spec)))
        if type(result) is torch.Tensor and type(layout.out_dims) is int:
            return functorch._remove_batch_dim(result, level, layout.size, layout.out_dims)
        return vmap_rules._unwrap_batched(result, layout.out_dims, level, layout.size, function)
    finally:
        functorch._vmap_decrement_nesting()


def spread_over(dims: Any, spec: Any) -> list[Any] | None:
    """Give every leaf of a structure its entry of ``dims``, a prefix of that structure; None when it is not one."""
    found: list[Any] | None = pytree.broadcast_to_and_flatten(dims, spec)
    return found


def name_of(function: Any) -> str:
    """Name a callable as its author does."""
    if not hasattr(function, "__code__") and resolve_name(function):
        return torch_name(function)
    return str(getattr(function, "__qualname__", "") or getattr(function, "__name__", "") or type(function).__name__)


def saving_hooked() -> bool:
    """Whether hooks take what autograd saves: inside a checkpoint, or ``save_on_cpu``."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


@contextmanager
def unhooked() -> Iterator[None]:
    """Run a block in which autograd saves tensors as they are; the hooks return afterwards, in their order."""
    kept = []
    while saving_hooked():
        kept.append(torch._C._autograd._top_saved_tensors_default_hooks(True))
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(kept):
            torch._C._autograd._push_saved_tensors_default_hooks(*pair)


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Run a block as if no transform were active; the active ones return afterwards."""
    with pyfunctorch.temporarily_clear_interpreter_stack():
        yield
