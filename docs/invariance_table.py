"""Write the table of what the results of real models depend on, by runtime and axis.

Ten architectures of ``transformers``, small and with random weights, through torch, an exported program and
onnxruntime. ``python docs/invariance_table.py [NAME ...]`` takes some minutes and writes
``docs/reference/invariance-of-models.md``; with names it prints the rows of those alone.
"""

from __future__ import annotations

import datetime
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import driftscope as ds  # noqa: E402
from driftscope.records.environment import capture, processor_words  # noqa: E402
from zoo.architectures import Picked, perturbed  # noqa: E402

PAGE = HERE / "reference" / "invariance-of-models.md"
AXES = ("repeat", "batch", "order", "padding", "chunking", "threads", "layout", "denormals")
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT: dict[str, dict[str, Any]] = {
    "Bert": {}, "Roberta": {"max_position_embeddings": 40}, "Electra": {"embedding_size": 32},
    "MPNet": {"max_position_embeddings": 40}, "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "Llama": {"num_key_value_heads": 2}, "Qwen2": {"num_key_value_heads": 2},
}  # fmt: skip
DECODERS = ("GPT2", "Llama", "Qwen2")
IMAGE: dict[str, dict[str, Any]] = {
    "ViT": {"patch_size": 8}, "Dinov2": {"patch_size": 8},
    "ConvNext": {"num_hidden_layers": 4, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
}  # fmt: skip
#: How an outcome is written in a table as wide as a page.
SHORT = {
    "same": "same",
    "rounding": "rounding",
    "different": "**different**",
    "refused": "refused",
    "not-applicable": "",
}


TODAY = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
INTRODUCTION = """# What the results of ten models depend on

`python docs/invariance_table.py` asks `ds.check_invariance` of ten architectures of `transformers` (two layers of 32,
random weights, four rows) on three runtimes, along every axis. **same**: every bit; **rounding**: other last bits,
within the noise floor; **different**: more than rounding; **refused**: the program does not run that way; empty: the
axis does not apply (no mask, no cache, a runtime that copies its inputs).

Chunking is asked of the decoders with their cache among the inputs and outputs. Padding is tried on both sides.
Models that number positions from the left, as BERT does, are *different* when they are padded on the left and given
no position ids; RoBERTa and MPNet count from the padding tokens instead. The finding says which side it was. The last
bits of a row depend on the size of its batch wherever a product takes another kernel for another number of rows;
which sizes those are depends on the processor, so another machine may show *same* for *rounding* and the other way
round.
""".splitlines()


class Masked(Picked):
    """A text model with the mask that says which positions are padding."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        result = self.model(input_ids, attention_mask=attention_mask, **self.arguments)
        return getattr(result, self.field)


def made(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Build one model with the same weights every time, and its inputs by name."""
    import transformers

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    if name in TEXT:
        config = getattr(transformers, f"{name}Config")(**{**SIZES, "vocab_size": 99, **TEXT[name]})
        config.use_cache = False
        model: nn.Module = Masked(getattr(transformers, f"{name}Model")(config), "last_hidden_state")
        ids = torch.randint(3, 99, (4, 11), generator=generator)
        return perturbed(model), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    config = getattr(transformers, f"{name}Config")(**{**SIZES, "image_size": 32, **IMAGE[name]})
    model = Picked(getattr(transformers, f"{name}Model")(config), "last_hidden_state")
    return perturbed(model), {"x": torch.randn(4, 3, 32, 32, generator=generator)}


def pad_token(name: str) -> int | None:
    """Return what a model of text is padded with, by its configuration."""
    import transformers

    token = getattr(transformers, f"{name}Config")().pad_token_id if name in TEXT else None
    return token if isinstance(token, int) else None


def programs(name: str, folder: Path) -> Iterator[tuple[str, Any, dict[str, torch.Tensor]]]:
    """Yield each runtime's name, the model on it, and the inputs."""
    model, inputs = made(name)
    yield "torch", model, inputs
    free = torch.export.Dim.DYNAMIC
    shapes = {key: {0: free, 1: free} if name in TEXT else {0: free} for key in inputs}
    exported = torch.export.export(model, (), inputs, dynamic_shapes=shapes)
    yield "exported program", exported, inputs
    path = folder / f"{name}.onnx"
    torch.onnx.export(exported, dynamo=True, verbose=False).save(path)
    yield "onnxruntime", path, inputs


class Cached(nn.Module):
    """A decoder whose cache is a list of keys and values, as an ONNX file has it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past_key_values: Any) -> Any:
        import transformers

        cache = transformers.DynamicCache(past_key_values)
        found = self.model(input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return found.last_hidden_state, [(layer.keys, layer.values) for layer in found.past_key_values.layers]


def cached(name: str, folder: Path) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield a decoder with its cache on each runtime, and its inputs with a cache that holds nothing."""
    masked, inputs = made(name)
    model: Any = masked.model
    config, layers = model.config, 2
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads

    def past(length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        size = (4, heads, length, 32 // 4)
        return [(torch.zeros(size), torch.zeros(size)) for _ in range(layers)]

    program, given = Cached(model).eval(), {**inputs, "past_key_values": past(0)}
    yield "torch", program, given
    free = torch.export.Dim.DYNAMIC
    mask = torch.ones(4, 3 + 11, dtype=torch.long)
    example = {**inputs, "attention_mask": mask, "past_key_values": past(3)}
    shapes = {key: {0: free, 1: free} for key in inputs} | {"past_key_values": [({0: free, 2: free},) * 2] * layers}
    exported = torch.export.export(program, (), example, dynamic_shapes=shapes)
    yield "exported program", exported, given
    file = torch.onnx.export(exported, dynamo=True, verbose=False)
    assert file is not None
    path = folder / f"{name}-cached.onnx"
    file.save(path)
    names = [value.name for value in file.model.graph.inputs]
    flat = [*inputs.values(), *(x for pair in past(0) for x in pair)]
    yield "onnxruntime", path, dict(zip(names, flat, strict=True))


def chunking(name: str, folder: Path) -> dict[str, str]:
    """Return the outcome along chunking by runtime: that of the decoder with its cache."""
    found: dict[str, str] = {}
    if name in DECODERS:
        for runtime, program, inputs in cached(name, folder):
            try:
                found[runtime] = ds.check_invariance(program, inputs, axes="chunking", explain=False).outcomes[
                    "chunking"
                ]
            except ds.RuntimeRefused:  # torch's own checks of an exported program fail before its first operator
                found[runtime] = "refused"
    return found


def rows(names: list[str]) -> Iterator[tuple[str, str, dict[str, str], str]]:
    """Yield model, runtime, outcomes by axis, and the operator that is named first."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            pieces = chunking(name, Path(folder))
            for runtime, program, inputs in programs(name, Path(folder)):
                report = ds.check_invariance(program, inputs, pad=pad_token(name))
                first = report.first
                place = f"{first.code} {first.where.operator or ''}".strip() if first is not None else ""
                outcomes = dict(report.outcomes)
                if runtime in pieces:
                    outcomes["chunking"] = pieces[runtime]
                yield name, runtime, outcomes, place


def table(found: list[tuple[str, str, dict[str, str], str]]) -> list[str]:
    """Return the outcomes as a Markdown table."""
    lines = ["| model | runtime | " + " | ".join(AXES) + " | first finding |", "|---|---|" + "---|" * (len(AXES) + 1)]
    for name, runtime, outcomes, place in found:
        cells = [SHORT.get(outcomes.get(axis, ""), outcomes.get(axis, "")) for axis in AXES]
        lines.append(f"| {name} | {runtime} | " + " | ".join(cells) + f" | {place} |")
    return lines


def main() -> None:
    """Measure, and write the page."""
    warnings.simplefilter("ignore")
    asked = sys.argv[1:]
    found = []
    for row in rows(asked or [*TEXT, *IMAGE]):
        sys.stdout.write(f"{row}\n")
        found.append(row)
    if not asked:
        PAGE.write_text(page(found), encoding="utf-8")


def page(found: list[tuple[str, str, dict[str, str], str]]) -> str:
    """Return the page: what was asked, the table, and how to ask it of a model of one's own."""
    where = capture()
    versions = where["versions"]
    made_with = ", ".join(f"{name} {versions[name]}" for name in ("torch", "onnxruntime", "transformers"))
    return "\n".join(
        [*INTRODUCTION, f"Measured with {made_with} on {processor_words(where)}, {TODAY}.", "", *table(found), ""]
    )


if __name__ == "__main__":
    main()
