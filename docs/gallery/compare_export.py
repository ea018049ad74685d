"""One export, five ways to run it, one table: which results have the same bits, and is every one the same program?

``python docs/gallery/compare_export.py`` takes a transformer encoder; ``--width 16 --layers 1`` is enough to see how it
works. Prints the verdict of each way against eager torch, and the groups with the same bits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import torch
from torch import nn

import driftscope as ds


def make_encoder(width: int, layers: int) -> nn.Module:
    """Return an encoder whose weights differ from layer to layer, as they do after training."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def ways_to_run(model: nn.Module, x: torch.Tensor, folder: Path) -> dict[str, object]:
    """Return programs by name, the reference first."""
    file = folder / "encoder.onnx"
    torch.onnx.export(model, (x,), str(file), verbose=False)
    return {
        "eager": model,
        "captured": ds.torch(model, compile="aot_eager"),
        "ort as exported": ds.onnx(file, level="disable"),
        "ort optimised": ds.onnx(file, level="all"),
        "float16": ds.torch(model, dtype="float16"),
    }


@click.command()
@click.option("--width", default=128, show_default=True)
@click.option("--layers", default=4, show_default=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write each comparison as a page into this folder."
)
def main(width: int, layers: int, output: Path | None) -> None:
    """Compare five ways to run one encoder."""
    model = make_encoder(width, layers)
    x = torch.randn(2, 16, width, generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        matrix = ds.compare_all(ways_to_run(model, x, Path(folder)), x)
    reference, *others = matrix.names
    for name in others:
        comparison = matrix.pairs[reference, name]
        first = comparison.outputs[0]
        floors = "-" if first.floors is None else f"{first.floors:.2f}"
        click.echo(f"{name:<16} {comparison.verdict:<13} {floors:>7} floors   max abs {first.max_abs:.1e}")
        if output is not None:
            output.mkdir(exist_ok=True, parents=True)
            comparison.save(output / f"{name.replace(' ', '-')}.html")
    click.echo("same bits: " + "; ".join(" = ".join(group) for group in matrix.classes))


if __name__ == "__main__":
    main()
