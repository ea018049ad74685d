"""What a run did, step by step: the calls of torch with the kinds of their results, and what a batch must not ask.

Values of examples decide nothing inside ``torch.vmap``: whatever turns one into a Python decision raises there, or
answers for the wrapper instead of the example. A guarded run sees both, also where the function swallows the
exception. Two runs with the same steps took the same path, so that what was proved for one holds for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from driftscope.transforms import torch_internals as internals

Steps = tuple[Any, ...]

_T: Any = torch.Tensor

#: Calls that hand a value to Python: their answer decides what happens next.
DECISIONS: frozenset[Any] = frozenset(
    {
        _T.__bool__, _T.__int__, _T.__float__, _T.__complex__, _T.__index__, _T.item, _T.tolist, _T.is_nonzero,
        _T.numpy, _T.__array__, _T.__format__, _T.__repr__, _T.__contains__, _T.allclose, _T.equal,
        torch.is_nonzero, torch.allclose, torch.equal,
    }
)  # fmt: skip
#: Calls that answer for the memory of the batch, or for its place in a graph, instead of the example's.
OF_THE_WRAPPER: frozenset[Any] = frozenset(
    {
        _T.stride, _T.storage_offset, _T.is_contiguous, _T.data_ptr, _T.untyped_storage, _T.storage, _T.__dlpack__,
        _T.is_set_to, _T._version.__get__, _T._base.__get__, _T.is_leaf.__get__, _T.grad_fn.__get__, _T.data.__get__,
        _T.grad.__get__, _T.retain_grad, _T.register_hook, _T.register_post_accumulate_grad_hook,
    }
)  # fmt: skip
_ASKED = DECISIONS | OF_THE_WRAPPER

#: Extremes of a whole tensor, and what gives the same with a batching rule that shares the derivative among ties as
#: the plain call does: torch's rule for these gives all of it to one of the equal elements.
OVER_ALL: dict[Any, Any] = {
    torch.max: torch.amax, _T.max: torch.amax, torch.min: torch.amin, _T.min: torch.amin,
    torch.median: None, _T.median: None, torch.nanmedian: None, _T.nanmedian: None,
}  # fmt: skip


def shares_among_ties(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call takes an extreme of a whole mapped tensor whose derivative is wanted."""
    if func not in OVER_ALL or len(args) != 1 or kwargs or not torch.is_grad_enabled():
        return False
    return internals.is_mapped(args[0]) and internals.wants_derivative(args[0])


def sharing(func: Any, tensor: torch.Tensor) -> Any:
    """Return what is called instead of an extreme of a whole mapped tensor; None where only the loop will do.

    Where an example holds NaN, the derivative of ``amax`` is another than that of ``max``.
    """
    if OVER_ALL[func] is None:
        return None
    with internals.beneath_transforms():
        values = internals.peel(tensor)[0]
        return None if not internals.is_fake(values) and values.isnan().any() else OVER_ALL[func]


def _positions_of_embedding(args: Any, keywords: Any) -> tuple[Any, Any]:
    given = dict(zip(("input", "weight"), args, strict=False)) | keywords
    return given["input"], len(given["weight"])


def _classes_of_one_hot(args: Any, keywords: Any) -> tuple[Any, Any]:
    given = dict(zip(("tensor", "num_classes"), args, strict=False)) | keywords
    classes = given.get("num_classes", -1)
    return given["tensor"], classes if isinstance(classes, int) and classes > 0 else None


#: Calls that look positions up, with what they look for and how many there are: a batched rule does not check them,
#: and reads another example's row where the plain call raises. Read in torch 2.13.0.
_LOOKED_UP: dict[Any, Callable[[Any, Any], tuple[Any, Any]]] = {
    F.embedding: _positions_of_embedding,
    torch.embedding: lambda args, keywords: (args[1], len(args[0])),
    F.one_hot: _classes_of_one_hot,
}


def _looks_beyond(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call looks up mapped positions that the plain call would refuse."""
    if func not in _LOOKED_UP:
        return False
    try:
        positions, size = _LOOKED_UP[func](args, kwargs or {})
    except (LookupError, TypeError):
        return False  # torch itself says what is missing
    if not isinstance(positions, torch.Tensor) or not internals.is_mapped(positions):
        return False
    with internals.beneath_transforms():
        values = internals.peel(positions)[0]
        if internals.is_fake(values) or not values.numel():
            return False
        low, high = values.aminmax()
        return bool(low < 0) or (size is not None and bool(high >= size))


#: Kernels whose vectorised and scalar halves give NaN another derivative, so that it depends on how many elements stand
#: before it: a batch is longer than its examples. Measured on torch 2.13.0 with AVX2, the same in all four float types.
#: The derivative of a product asks whether zeros stand anywhere in the batch before it divides.
_NAN_DECIDES = ("hardtanh", "relu6", "elu", "selu", "celu", "hardswish", "hardshrink", "softshrink", "prod")
_LOGIT: frozenset[Any] = frozenset({torch.logit, torch.special.logit, _T.logit, _T.logit_})
#: Decomposed for a batch into logarithms and a product, of which infinity is none of the kernel's.
_CROSS_ENTROPY: frozenset[Any] = frozenset({F.binary_cross_entropy_with_logits, torch.binary_cross_entropy_with_logits})
_AT_NAN: frozenset[Any] = (
    _LOGIT
    | _CROSS_ENTROPY
    | frozenset(
        getattr(room, name + end)
        for room in (F, torch, _T, internals.NN)
        for name in _NAN_DECIDES
        for end in ("", "_")
        if hasattr(room, name + end)
    )
)


def _meets_nan(func: Any, args: Any) -> bool:
    """Whether a derivative is wanted at NaN of a kernel that answers by the place of the element."""
    if func not in _AT_NAN or not args or not isinstance(args[0], torch.Tensor) or not internals.is_mapped(args[0]):
        return False
    if not internals.forward_wanted() and not (torch.is_grad_enabled() and internals.wants_derivative(args[0])):
        return False
    with internals.beneath_transforms():
        values = internals.peel(args[0])[0]
        if internals.is_fake(values):
            return False
        if func in _CROSS_ENTROPY:
            return not bool(torch.isfinite(values).all())
        # At -0 the derivative of logit has either sign.
        return bool(values.isnan().any()) or (func in _LOGIT and bool((values == 0).any()))


def unlike_the_loop(func: Any, args: Any, kwargs: Any) -> str:
    """Return why a batch may answer this call otherwise than its examples alone would; "" where it may not."""
    if _looks_beyond(func, args, kwargs):
        return f"{internals.torch_name(func)} looks for what is not there"
    if _meets_nan(func, args):
        return f"{internals.torch_name(func)} has a derivative that depends on the place of these values"
    return ""


#: All that a guarded run looks at more closely than by its kind.
_LOOKED_AT: frozenset[Any] = _ASKED.union(OVER_ALL, _LOOKED_UP, _AT_NAN)

_PLAIN = (bool, int, str, torch.Size, torch.dtype, torch.device, type(None))


class Guard(TorchFunctionMode):
    """Follows one run.

    Attributes
    ----------
    steps : list
        Each call of torch with the kind of its result.
    hazard : str
        The first call that a batch cannot make for its examples; "" when there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Any] = []
        self.hazard = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = self.looked_at(func, args, kwargs) if func in _LOOKED_AT else func
        try:
            result = called(*args, **kwargs) if kwargs else called(*args)
        except Exception as error:
            # Counted also when the function catches it: the examples alone would not all have raised.
            self.hazard = self.hazard or f"{internals.torch_name(func)} raises {type(error).__name__}"
            raise
        self.steps.append((func, kind_of(result)))
        return result

    def looked_at(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Note what a batch must not ask; return what is called instead."""
        if func in _ASKED and any(isinstance(arg, torch.Tensor) and internals.is_mapped(arg) for arg in args):
            self.hazard = self.hazard or f"{internals.torch_name(func)} is called on a mapped tensor"
        called = func
        if shares_among_ties(func, args, kwargs):
            shared = sharing(func, args[0])
            called = shared or func
            self.hazard = self.hazard or ("" if shared else f"{internals.torch_name(func)} may meet ties or NaN")
        self.hazard = self.hazard or unlike_the_loop(func, args, kwargs)
        return called


def kind_of(result: Any) -> Any:
    """Describe a result by what examples of one path share: dtype and shape of tensors, other values as they are."""
    if isinstance(result, torch.Tensor):
        return (result.dtype, result.shape)
    if isinstance(result, _PLAIN):
        return (type(result), result)
    if isinstance(result, float):
        return repr(result)  # NaN is equal to itself in words
    if isinstance(result, (tuple, list)):
        return tuple(map(kind_of, result))
    return type(result)


class Guarded:
    """A function whose every run is followed; ``torch.vmap`` runs it once per chunk.

    Parameters
    ----------
    function : callable
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self.runs: list[Guard] = []

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        guard = Guard()
        self.runs.append(guard)
        with guard:
            return self._function(*args, **keywords)

    @property
    def __name__(self) -> str:
        return internals.name_of(self._function)

    @property
    def hazard(self) -> str:
        """The first hazard of any run."""
        return next((guard.hazard for guard in self.runs if guard.hazard), "")

    def steps(self) -> Steps | None:
        """Return the steps that every run took, None where they took different ones or met a hazard."""
        taken = {tuple(guard.steps) for guard in self.runs}
        return taken.pop() if len(taken) == 1 and not self.hazard else None
