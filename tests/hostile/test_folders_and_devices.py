"""Folders of Hugging Face models, and names that stand for devices: what they ask for beyond data is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import driftscope as ds
from driftscope.errors import DriftscopeError
from driftscope.programs.feeding.files import read_inputs
from driftscope.records.runs.store import RunFolder
from driftscope.report.pages.page import read
from driftscope.shapes.covering.files import load_cover
from driftscope.studies.comparison_study.pairs import listing_of
from driftscope.studies.user_studies import load
from hostile import large_files

_SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hub") / "honest"
    torch.manual_seed(0)
    transformers.BertModel(
        transformers.BertConfig(vocab_size=32, max_position_embeddings=16, **_SIZES)
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def changed(honest: Path, tmp_path: Path) -> Callable[..., Path]:
    """Make a copy of the model, with some values of its configuration and some files changed."""

    def make(config: dict[str, Any], files: dict[str, str | bytes] | None = None) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        os.symlink(honest / "model.safetensors", folder / "model.safetensors")  # as the Hub's cache has it
        data = json.loads((honest / "config.json").read_text()) | config
        (folder / "config.json").write_text(json.dumps(data))
        for name, content in (files or {}).items():
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return make


def _weights(folder: Path) -> list[torch.Tensor]:
    return list(ds.program(folder).module.state_dict().values())  # type: ignore[attr-defined]


_HOW = {
    "code beside it": {"auto_map": {"AutoModel": "mine.Mine", "AutoConfig": "mine.Config"}},
    "code beside it, by AutoModel": {"architectures": ["AutoModel"], "auto_map": {"AutoModel": "mine.Mine"}},
    "a kernel of the Hub": {"attn_implementation": "somebody/kernel", "_attn_implementation": "somebody/kernel"},
    "a kernel of the Hub, inside": {"_attn_implementation_internal": "somebody/kernel"},
    "a package's attention": {"attn_implementation": "flash_attention_2", "experts_implementation": "a/b"},
    "another folder": {"_name_or_path": "/etc", "name_or_path": "somebody/model"},
}


@pytest.mark.parametrize("name", _HOW)
@pytest.mark.sampled(2)
def test_what_a_configuration_asks_for_beyond_sizes_is_left_out(
    changed: Callable[..., Path], honest: Path, name: str, tmp_path: Path
) -> None:
    folder = changed(_HOW[name], {"mine.py": f"open({str(tmp_path / 'RAN')!r}, 'w')\n"})
    assert all(map(torch.equal, _weights(folder), _weights(honest)))
    assert not (tmp_path / "RAN").exists()


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "quantised": ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "quantised"),
    "quantised inside": ({"text_config": {"quantization_config": {"quant_method": "torchao"}}}, "quantised"),
    "a retriever": ({"architectures": ["RagRetriever"]}, "among its models"),
    "a tokenizer": ({"architectures": ["AutoTokenizer"]}, "among its models"),
    "no class": ({"architectures": {"a": 1}}, "cannot|among its models"),
    "a special name": ({"architectures": ["__spec__"]}, "among its models"),
    "layers without end": ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000, and the folder holds"),
    "labels without end": ({"num_labels": 10**9}, "num_labels"),
    "fewer labels than none": ({"num_labels": -1}, "num_labels"),
    "no heads": ({"num_attention_heads": 0}, "transformers cannot build"),
    "text for a size": ({"hidden_size": "16"}, "transformers cannot build"),
    "a property": ({"use_return_dict": 1}, "transformers cannot build"),
    "odd type": ({"dtype": [1]}, "transformers cannot build"),
    "other shapes": ({"hidden_size": 32}, "other shapes than config"),
    "odd model type": ({"architectures": ["AutoModel"], "model_type": ["bert"]}, "transformers cannot build"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _REFUSED)
def test_configurations_that_are_no_model_are_refused_in_a_sentence(changed: Callable[..., Path], name: str) -> None:
    change, words = _REFUSED[name]
    with pytest.raises(ds.ProgramError, match=words) as refused:
        ds.program(changed(change))
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("part", ["../x.safetensors", "/etc/passwd", "evil.bin", "a\0.safetensors", ""])
def test_parts_of_the_weights_lie_beside_their_index(changed: Callable[..., Path], honest: Path, part: str) -> None:
    def index(name: str) -> str:
        return json.dumps({"weight_map": {"pooler.dense.bias": name}})

    folder = changed({}, {"model.safetensors.index.json": index(part)})
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    with pytest.raises(ds.ProgramError, match="files beside it"):
        ds.program(folder)
    (folder / "model.safetensors.index.json").write_text(index("model-1.safetensors"))
    assert all(map(torch.equal, _weights(folder), _weights(honest)))


_READERS: dict[str, Callable[[Path], Any]] = {
    "r.json": read, "r.html": read, "s.yaml": load, "l.csv": lambda path: listing_of(str(path)), "i.json": read_inputs,
    "manifest.json": lambda path: load_cover(path.parent), "run.json": lambda path: RunFolder(path.parent),
    "config.json": lambda path: ds.program(path.parent),
}  # fmt: skip


@pytest.mark.parametrize("name", _READERS)
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_devices_and_pipes_by_the_name_of_a_file_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    """They would be read for ever; a text of several GiB would fill the memory."""
    if kind == "device":
        os.symlink("/dev/zero", tmp_path / name)
    else:
        os.mkfifo(tmp_path / name)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(DriftscopeError):
        _READERS[name](tmp_path / name)


def test_a_text_beyond_all_bounds_is_not_read_and_one_of_a_pipe_that_was_typed_is(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_bytes(b"")
    os.truncate(tmp_path / "large.json", 1 << 40)
    with pytest.raises(DriftscopeError, match="more than 512 MiB"):
        read(tmp_path / "large.json")
    reading, writing = os.pipe()
    os.write(writing, b"[]")
    os.close(writing)
    with pytest.raises(DriftscopeError, match="it holds a list"):
        read(f"/dev/fd/{reading}")
    os.close(reading)


def test_rows_that_are_a_device_are_no_rows(tmp_path: Path) -> None:
    header = {"schema": "driftscope/run/1", "study": "s", "axes": {"a": [1]}}
    (tmp_path / "run.json").write_text(json.dumps(header))
    os.symlink("/dev/zero", tmp_path / "rows-1.jsonl")
    os.symlink("/dev/zero", tmp_path / "columns-1.jsonl")
    run = RunFolder(tmp_path)
    assert list(run.cells()) == []
    assert "cell" in run.columns()


def test_nested_tensors_among_inputs_are_refused(tmp_path: Path) -> None:
    torch.save({"x": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, tmp_path / "nested.pt")
    with pytest.raises(ds.InputError, match="holds an object of class Tensor"):
        read_inputs(tmp_path / "nested.pt")
    (tmp_path / "plain.npy").write_bytes(large_files.npy((2,), bytes(8)))
    read_inputs(tmp_path / "plain.npy")
