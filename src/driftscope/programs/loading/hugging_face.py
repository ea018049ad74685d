"""Folders of Hugging Face models: transformers builds the class, from a configuration and weights that are only data.

``config.json`` can ask transformers for more than a class and its sizes: for code beside it, for kernels from the Hub,
for packages that unpack quantised weights, for weights that lie elsewhere. So transformers never sees the folder. It
gets the configuration without what says *how* a model is run, and the tensors, which are read here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from driftscope.errors import ProgramError
from driftscope.programs.loading.weights import read_weights
from driftscope.records.files import bounded_text
from driftscope.records.json_text import parse_json
from driftscope.records.words import listed

_NAMED = 5
_LARGEST_FILE = 64 << 20
# How it is run, by whose code, and where it came from: dropped at every depth of a configuration.
_NOT_DATA = re.compile(
    r".*implementation.*|auto_map|custom_.*|use_kernels?|kernel_config|use_pretrained_backbone|_?name_or_path"
    r"|_commit_hash|distributed_config|.*tp_plan|.*device_map|gguf_file"
)
_UNPACKED = ("quantization_config", "compression_config")
_COUNTS = re.compile(r".*(layers?|blocks?|depths?)$")
_FEW_LAYERS, _MOST_LABELS = 1_000, 1_000_000


def hugging_face_model(folder: Path) -> Any:
    """Build the module that ``config.json`` describes with the folder's safetensors in it, in evaluation mode.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    torch.nn.Module

    Raises
    ------
    ProgramError
        If transformers is not installed, the class that ``config.json`` names is not one of its models, the
        configuration asks for more than sizes, or the weights are damaged or do not fit.
    """
    try:
        import transformers
    except ImportError as error:
        raise ProgramError(
            f"{folder} is a Hugging Face model, which transformers builds: pip install transformers"
        ) from error
    config = _configuration(folder / "config.json")
    kind = _class(transformers, config, folder)
    tensors = _tensors(folder)
    _check_counts(config, len(tensors), folder)
    try:
        with _quietly(transformers):
            kind, made = _typed(transformers, kind, config)
            model, told = kind.from_pretrained(None, config=made, state_dict=tensors, output_loading_info=True)
    except Exception as error:
        # Anything that numbers and words of the right form and the wrong content may raise; the file is the user's.
        words = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        if "ignore_mismatched_sizes" in words or "size mismatch" in str(error):
            words = "the weights have other shapes than config.json says"
        raise ProgramError(f"transformers cannot build the model in {folder}: {words[:300]}") from error
    drawn = sorted({str(name) for key in ("missing_keys", "mismatched_keys") for name in told.get(key, ())})
    if drawn:
        few = listed(drawn, _NAMED)
        raise ProgramError(
            f"the weights in {folder} do not fit {kind.__name__}: transformers would draw {few} at random; give the"
            " class that the weights were saved from, in config.json, or the whole weights"
        )
    return model.eval()


def _parsed(file: Path) -> dict[str, Any]:
    try:
        found = parse_json(bounded_text(file, _LARGEST_FILE))
    except (OSError, ValueError) as error:
        raise ProgramError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ProgramError(f"{file} cannot be read: it holds a {type(found).__name__}, not a configuration")
    return found


def _configuration(file: Path) -> dict[str, Any]:
    config = _parsed(file)
    for part in _parts(config):
        if any(part.get(key) for key in _UNPACKED):
            raise ProgramError(
                f"{file} says the weights are quantised, and another package would unpack them; no package is run"
                " because a file asks for it: give file.py:name that builds the model"
            )
    return _data_only(config)  # type: ignore[no-any-return]


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every dict of a tree, of bounded depth as it was parsed."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _parts(inner)


def _data_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _data_only(part) for key, part in value.items() if not _NOT_DATA.fullmatch(key)}
    return [_data_only(part) for part in value] if isinstance(value, list) else value


def _class(transformers: Any, config: Mapping[str, Any], folder: Path) -> Any:
    """The class that the configuration names, if it is a model that transformers itself brings."""
    names = config.get("architectures") or ["AutoModel"]
    name = names[0] if isinstance(names, list) else names
    kind = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if _is_auto(kind) or (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        return kind
    raise ProgramError(
        f"{folder / 'config.json'} names the class {str(name)[:80]!r}, which transformers {transformers.__version__}"
        " does not have among its models; code that lies in the folder is not run: give file.py:name that builds the"
        " model"
    )


def _is_auto(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__name__.startswith("AutoModel") and hasattr(kind, "_model_mapping")


def _typed(transformers: Any, kind: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    """The class of the model and its configuration, an object; ``AutoModel`` gives way to the class it stands for."""
    if not _is_auto(kind):
        return kind, kind.config_class.from_dict(config)
    # Seen in transformers 4.57 and 5.23: what AutoModel.from_config looks up.
    made = type(transformers.AutoConfig.for_model(config.get("model_type"))).from_dict(config)
    found = kind._model_mapping[type(made)]
    return (found[0] if isinstance(found, tuple) else found), made


def _check_counts(config: dict[str, Any], tensors: int, folder: Path) -> None:
    """Refuse what would be built piece by piece for hours: more layers than weights, labels by the million."""
    for part in _parts(config):
        for key, value in part.items():
            if type(value) is not int:
                continue
            layers = _COUNTS.fullmatch(key) is not None and value > max(_FEW_LAYERS, tensors)
            if layers or (key.endswith("num_labels") and not 0 <= value <= _MOST_LABELS):
                raise ProgramError(
                    f"{folder / 'config.json'} asks for {key} = {value}, and the folder holds {tensors} tensors"
                )


def _tensors(folder: Path) -> dict[str, Any]:
    """Every tensor of ``model.safetensors``, or of the parts that its index lists."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return dict(read_weights(single))
    if not index.is_file():
        raise ProgramError(f"{folder} holds neither model.safetensors nor an index of its parts")
    places = _parsed(index).get("weight_map")
    names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
    odd = next((n for n in names if "\0" in n or Path(n).name != n or not n.endswith(".safetensors")), None)
    if odd is not None or not names:
        raise ProgramError(f"{index} names {str(odd)[:80]!r} as a part; parts are .safetensors files beside it")
    found: dict[str, Any] = {}
    for name in names:
        found |= read_weights(folder / name)
    return found


@contextlib.contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Keep transformers' bars and reports off stderr, and transformers off the net, whatever a configuration names."""
    from huggingface_hub import constants

    logs = transformers.utils.logging
    bars, level, offline = logs.is_progress_bar_enabled(), logs.get_verbosity(), constants.HF_HUB_OFFLINE
    logs.disable_progress_bar()
    logs.set_verbosity_error()
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logs.set_verbosity(level)
        if bars:
            logs.enable_progress_bar()


def inputs_of(model: Any) -> dict[str, str] | None:
    """Describe the main input of a Hugging Face model by its configuration; None where that says too little."""
    name, config = getattr(model, "main_input_name", None), getattr(model, "config", None)
    words, channels, size = (getattr(config, key, None) for key in ("vocab_size", "num_channels", "image_size"))
    if name == "input_ids" and isinstance(words, int) and words > 0:
        return {name: f"2x8:int64:randint(0,{words})"}
    if name == "pixel_values" and isinstance(channels, int) and isinstance(size, int):
        return {name: f"1x{channels}x{size}x{size}:float32"}
    return None
