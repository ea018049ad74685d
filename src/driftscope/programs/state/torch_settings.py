"""torch's settings: of the process, and of the thread that asks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from driftscope.programs.state.setting import Setting

_HALF_OF_SMALLEST = [2.0**-1022, 0.5]  # in a list, so that the product is not computed when this file is compiled

# A module whose attributes torch makes properties of; the type checker knows none of them.
_MEMORY: Any = torch.utils.deterministic
_FUNC: Any = torch._C._functorch


def torch_settings() -> tuple[Setting, ...]:
    """Return every setting of torch that changes numbers, or what later code does."""
    return (
        # The first to be put back: what runs inside of a transform that was left open is transformed.
        Setting("torch.func's transforms in force", _FUNC.get_dynamic_layer_stack_depth, _close_transforms),
        Setting("the state of torch's random generator", torch.get_rng_state, torch.set_rng_state, random=True),
        Setting("the state of CUDA's random generators", _cuda_states, _set_cuda_states, random=True),
        Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("torch's default device", _default_device, torch.set_default_device),
        Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
        Setting("torch's deterministic mode", _deterministic, _set_deterministic),
        Setting("torch's float32 matmul precision", *_flag(torch.get_float32_matmul_precision,
                torch.set_float32_matmul_precision)),
        Setting("torch.backends flags", backend_flags, _set_backend_flags),
        Setting("torch's gradient mode", torch.is_grad_enabled, _set_grad_enabled),
        Setting("torch's anomaly mode", _anomaly, lambda kept: torch.set_anomaly_enabled(*kept)),
        Setting("torch's autocast", _autocast, _set_autocast),
        Setting("flushing of denormal numbers", flushes_denormals, torch.set_flush_denormal),
        Setting("torch's print options", lambda: dict(vars(torch._tensor_str.PRINT_OPTS)), _set_print_options),
    )  # fmt: skip


def _flag(read: Callable[[], Any], write: Callable[[Any], Any]) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Read None where torch refuses to say, because its old and its new way to set a flag were mixed."""

    def reading() -> Any:
        try:
            return read()
        except RuntimeError:
            return None

    def writing(kept: Any) -> None:
        if kept is not None:
            write(kept)

    return reading, writing


_BACKENDS: tuple[tuple[Any, str], ...] = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "deterministic"),
    (torch.backends.cudnn, "enabled"),
    (torch.backends.mkldnn, "enabled"),
)


def backend_flags() -> tuple[Any, ...]:
    """Return the switches of torch's backends that change numbers; None for one that torch refuses to say."""
    try:
        return tuple([getattr(home, name) for home, name in _BACKENDS])
    except RuntimeError:
        return tuple(_flag(lambda: getattr(home, name), print)[0]() for home, name in _BACKENDS)  # noqa: B023


def _set_backend_flags(kept: tuple[Any, ...]) -> None:
    for (home, name), now, before in zip(_BACKENDS, backend_flags(), kept, strict=True):
        if before is not None and now != before:
            setattr(home, name, before)


def _cuda_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_cuda_states(kept: list[torch.Tensor]) -> None:
    if kept:
        torch.cuda.set_rng_state_all(kept)


def _default_device() -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _deterministic() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        _MEMORY.fill_uninitialized_memory,
    )


def _set_deterministic(kept: tuple[bool, bool, bool]) -> None:
    torch.use_deterministic_algorithms(kept[0], warn_only=kept[1])
    _MEMORY.fill_uninitialized_memory = kept[2]


def _set_grad_enabled(on: bool) -> None:
    torch._C._set_grad_enabled(on)


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _autocast() -> tuple[Any, ...]:
    kinds = ("cpu", "cuda")
    return (
        *((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds),
        torch.is_autocast_cache_enabled(),
    )


def _set_autocast(kept: tuple[Any, ...]) -> None:
    for kind, (enabled, dtype) in zip(("cpu", "cuda"), kept, strict=False):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(kept[-1])


def flushes_denormals() -> bool:
    """Whether this thread takes denormal numbers as zero."""
    # torch has no word for it; the mode belongs to the processor and the thread, so Python's own product shows it.
    return math.prod(_HALF_OF_SMALLEST) == 0.0


def _close_transforms(depth: int) -> None:
    """End what was begun since: an exported `torch.vmap` that stops on the way leaves its level behind."""
    if _FUNC.get_dynamic_layer_stack_depth() > depth:
        _FUNC.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _set_print_options(kept: dict[str, Any]) -> None:
    for name, value in kept.items():
        setattr(torch._tensor_str.PRINT_OPTS, name, value)
