"""One sum, four libraries' orders: revealed, drawn, replayed, and then taken away.

``python docs/gallery/sum_orders.py`` asks kernels in which order they add, says how two of them differ, replays one
without its kernel, and shows that the exact sum has the same bits in every order. ``--terms 256`` is enough to see how
it works; ``-o folder`` also draws the trees.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

import driftscope as ds

TERMS = 256 if os.environ.get("DRIFTSCOPE_SMALL") else 4096

# %%
# In which order?
# ---------------
# A name is enough; any function that reduces the last axis of (rows, n) will do as well.


def backwards(x: np.ndarray) -> np.ndarray:
    """Add from the last term to the first."""
    return np.cumsum(x[:, ::-1], axis=-1)[:, -1]


def reveal_all(terms: int) -> dict[str, Any]:
    """Return the order of each kernel by its name."""
    kernels = {"numpy.sum": "numpy.sum", "torch.sum": "torch.sum", "torch.matmul": "torch.matmul", "own": backwards}
    return {name: ds.reveal(kernel, terms, threads=1) for name, kernel in kernels.items()}


# %%
# Same terms, other bits
# ----------------------
# A revealed order computes the kernel's bits without the kernel. Two orders differ; the exact sum does not know any.


def count_results(found: dict[str, Any], terms: int) -> tuple[int, int]:
    """Return how many different results the orders give for one row, and how many the exact sum gives."""
    x = np.random.default_rng(0).standard_normal((1, terms)).astype(np.float32)
    replayed = {float(a.replay(x)[0]) for a in found.values()}
    permuted = [np.random.default_rng(seed).permutation(x[0]) for seed in range(len(found))]
    return len(replayed), len({float(ds.exact.sum(row)) for row in permuted})


@click.command()
@click.option("--terms", default=TERMS, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw each tree into this folder.")
def main(terms: int, output: Path | None) -> None:
    """Reveal, contrast and replay the orders of one sum."""
    torch.set_num_threads(1)
    found = reveal_all(terms)
    for name, a in found.items():
        click.echo(f"{name:<13} depth {a.depth:>5}  {a.calls:>4} calls  {a.family}")
        if output is not None:
            output.mkdir(exist_ok=True, parents=True)
            a.draw(output / f"{name}.svg")
    click.echo(f"\n{found['numpy.sum'].explain(found['torch.sum'])}\n")
    ours, exact = count_results(found, terms)
    click.echo(
        f"the same {terms} numbers: {ours} different sums in {len(found)} orders, {exact} exact sum in any order"
    )
    click.echo(f"torch.matmul depends on  {found['torch.matmul'].dependence(rows=(1, 32), threads=(1, 2))}")


if __name__ == "__main__":
    main()
