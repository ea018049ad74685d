"""The environment numbers were made in: versions, processor, arithmetic libraries, variables that change results.

Nothing is imported to be described: what torch, onnxruntime and numpy know about themselves is asked of them only
when they are loaded already, because then they took part in the run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_PACKAGES = (
    "driftscope", "torch", "numpy", "ml-dtypes", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu",
    "transformers", "safetensors", "jax", "triton", "scikit-learn",
)  # fmt: skip

# The newest minor versions of docs/reference/compatibility.md; newer ones are taken, and said to be untried.
_NEWEST_TRIED = {"torch": (2, 15), "onnxruntime": (1, 32), "onnx": (1, 23), "numpy": (2, 5)}

_VARIABLES = re.compile(
    r"^(OMP|MKL|OPENBLAS|GOTO|BLIS|KMP|ONEDNN|DNNL|NVIDIA_TF32|CUBLAS|CUDNN|CUDA_VISIBLE|CUDA_LAUNCH|TORCH|PYTORCH|ORT"
    r"|JAX|XLA)_?[A-Z0-9_]*$"
)

# Set by OpenMP runtimes and libraries themselves while they are imported: they say when, not how, numbers were made.
_SET_BY_LIBRARIES = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}

# The instruction sets that change how a sum is grouped, whether products are fused, or which kernel is chosen.
_ARITHMETIC_FLAGS = re.compile(
    r"^(sse4_[12]|avx\w*|fma|fma4|f16c|amx_\w+|vnni|asimd\w*|sve\w*|sme2?|fphp|bf16|i8mm|fcma|neon)$"
)

# A folder, or file, by which an installer tells what it put beside it.
_INSTALLED = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-py[^-]+)?\.(?:dist|egg)-info")

_VECTORS = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sve", "SVE"), ("asimd", "NEON"), ("sse4_2", "SSE4.2"))


def capture() -> dict[str, Any]:
    """Describe this machine and this process as plain data.

    Returns
    -------
    dict
        ``python``, ``system``, ``processor``, ``versions``, ``variables`` always; ``torch``, ``onnxruntime``,
        ``blas`` and ``gpu`` where the libraries are loaded. Equal runs give equal data: no times, no process ids,
        no user or host names.
    """
    found: dict[str, Any] = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": _system(),
        "processor": _processor(),
        "versions": dict(_versions()),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if _matters(name)},
    }
    sections: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("torch", _torch), ("onnxruntime", _onnxruntime), ("blas", _blas), ("gpu", _gpus),
    )  # fmt: skip
    for name, section in sections:
        value = section()
        if value:
            found[name] = value
    return found


def untried(versions: Mapping[str, str]) -> list[str]:
    """Say which libraries are newer than any that driftscope was tried with.

    Parameters
    ----------
    versions : mapping of str to str
        Names of packages and their versions, as in ``capture()["versions"]``.

    Returns
    -------
    list of str
        One sentence per library; empty where every one was tried.
    """
    said = []
    for name, newest in _NEWEST_TRIED.items():
        numbers = re.match(r"(\d+)\.(\d+)", versions.get(name, ""))
        if numbers and (int(numbers[1]), int(numbers[2])) > newest:
            tried = ".".join(map(str, newest))
            said.append(f"{name} {versions[name]} is newer than any version driftscope was tried with ({tried})")
    return said


# Entries that follow from the processor: what it is, what the libraries chose for it.
_OF_PROCESSOR = (
    r"^(processor\.|system$|torch\.(cpu_capability|parallel_info|threads|interop_threads)$"
    r"|blas\[\d+\]\.(architecture|num_threads)$)"
)
# Those that tell one processor from another. Cores and threads follow from it, but may be set without it.
_PROCESSOR_ITSELF = r"^(processor\.(model|flags)|torch\.cpu_capability$|blas\[\d+\]\.architecture$)"


def is_another_processor(changed: Iterable[str]) -> bool:
    """Whether what changed in a flattened environment is the processor, and nothing but what follows from it."""
    names = list(changed)
    return all(re.match(_OF_PROCESSOR, n) for n in names) and any(re.match(_PROCESSOR_ITSELF, n) for n in names)


def processor_words(environment: Mapping[str, Any]) -> str:
    """Return the processor of an environment with its widest vectors, as ``"AMD EPYC (AVX-512)"``; empty if unknown."""
    processor = environment.get("processor")
    if not isinstance(processor, Mapping) or not processor.get("model"):
        return ""
    named = processor.get("flags")
    flags = set(map(str, named)) if isinstance(named, (list, tuple)) else set()
    # What was allowed counts more than what is there: variables can tell the libraries to use less.
    torch = environment.get("torch")
    allowed = str(torch.get("cpu_capability") or "") if isinstance(torch, Mapping) else ""
    widest = next((words for flag, words in _VECTORS if flag in flags), "")
    vectors = {"AVX512": "AVX-512", "AVX2": "AVX2", "DEFAULT": "no AVX2 used"}.get(allowed, allowed) or widest
    return f"{processor['model']}" + (f" ({vectors})" if vectors else "")


def made_elsewhere(environment: Mapping[str, Any]) -> str:
    """Say that a record was made on another processor than this one; empty if it was not, or nobody knows."""
    there, here = environment.get("processor"), _processor()
    if not isinstance(there, Mapping) or not there.get("model"):
        return ""
    if (there.get("model"), there.get("flags")) == (here.get("model"), here.get("flags")):
        return ""
    ours = processor_words({"processor": here})
    return f"made on {processor_words(environment)}, not on this processor, {ours}"


@functools.cache
def _versions() -> dict[str, str]:
    """Read versions off the folders that installers wrote, which are named ``package-version.dist-info``.

    ``importlib.metadata`` says the same, and imports a reader of mails for it: a tenth of a short study.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder or os.curdir):
                if entry.endswith("-info") and (named := _INSTALLED.fullmatch(entry)):
                    found.setdefault(re.sub(r"[-_.]+", "-", named["name"]).lower(), named["version"])
    return {name: found[name] for name in _PACKAGES if name in found}


def _system() -> str:
    words = [platform.system(), platform.release(), platform.machine()]
    libc = " ".join(platform.libc_ver()).strip()
    return ", ".join(w for w in (" ".join(words), libc) if w)


def _processor(cpuinfo: str | os.PathLike[str] = "/proc/cpuinfo") -> dict[str, Any]:
    """Return model, logical cores and arithmetic flags; the model alone where there is no /proc."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:
        usable = os.cpu_count() or 0
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = _text_of(cpuinfo).splitlines()
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    named = fields.get("model name") or fields.get("model")
    # platform.processor() starts a process to ask.
    found = {"model": named or platform.processor() or platform.machine(), "cores": usable}
    if not lines:
        return found
    flags = (fields.get("flags") or fields.get("features") or "").split()
    found["flags"] = sorted({f for f in flags if _ARITHMETIC_FLAGS.match(f)})
    return found


def _torch() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "__config__"):
        return {}
    info = {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": _matmul_precision(torch),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "parallel_info": [line.strip() for line in torch.__config__.parallel_info().splitlines() if line.strip()],
    }
    return {key: value for key, value in info.items() if value is not None}


def _matmul_precision(torch: Any) -> str:
    """How float32 products are computed; per backend where the setting common to all was not the last one used."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # torch refuses to answer once a backend was set on its own
        backends = (("cuda", torch.backends.cuda.matmul), ("mkldnn", torch.backends.mkldnn.matmul))
        return ", ".join(f"{name} {backend.fp32_precision}" for name, backend in backends)


def _onnxruntime() -> dict[str, Any]:
    module = sys.modules.get("onnxruntime")
    if module is None or not hasattr(module, "get_build_info"):
        return {}
    return {"build": module.get_build_info(), "providers": list(module.get_available_providers())}


def _blas() -> list[dict[str, Any]]:
    if "numpy" not in sys.modules and "torch" not in sys.modules:
        return []
    kept = ("user_api", "internal_api", "version", "architecture", "threading_layer", "num_threads")
    found = thread_pools().info()  # asks each of them how many threads it has now
    pools = [{key: pool[key] for key in kept if pool.get(key) is not None} for pool in found]
    return sorted(pools, key=lambda pool: [str(pool.get(key)) for key in kept])


def thread_pools() -> Any:
    """Return ``threadpoolctl``'s controller of the libraries that keep threads, as loaded now."""
    import threadpoolctl  # before modules are counted

    return _libraries(threadpoolctl.ThreadpoolController, len(sys.modules))


@functools.lru_cache(maxsize=1)
def _libraries(look: Callable[[], Any], _modules: int) -> Any:
    """Look for them again once more was imported: a walk through all that is loaded."""
    return look()


def _gpus() -> list[dict[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return []
    return [*(_cuda_devices(torch) if torch.cuda.is_available() else ()), *_other_devices(torch)]


def _other_devices(torch: Any) -> list[dict[str, Any]]:
    """Intel's and Apple's: their names, where torch knows them."""
    found: list[dict[str, Any]] = []
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_available():
        found += ({"name": xpu.get_device_name(index), "kind": "xpu"} for index in range(xpu.device_count()))
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is not None and mps.is_available():
        found.append({"name": platform.processor() or "mps", "kind": "mps"})
    return found


def _cuda_devices(torch: Any) -> list[dict[str, Any]]:
    driver = _nvidia_driver()
    found = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": device.name,
                "capability": f"{device.major}.{device.minor}",
                "memory_gib": round(device.total_memory / 2**30, 1),
                "cuda": torch.version.cuda,
                "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
                "tf32_cudnn": torch.backends.cudnn.allow_tf32,
                **({"driver": driver} if driver else {}),
            }
        )
    return found


def _nvidia_driver(version_file: str | os.PathLike[str] = "/proc/driver/nvidia/version") -> str:
    try:
        text = _text_of(version_file)
    except OSError:
        return ""
    match = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return match.group() if match else ""


def _text_of(file: str | os.PathLike[str]) -> str:
    with open(file, encoding="utf-8", errors="replace") as opened:
        return opened.read()


def _matters(name: str) -> bool:
    return bool(_VARIABLES.match(name)) and name not in _SET_BY_LIBRARIES
