"""Train the demo's classifier and write its weights: ``python -m driftscope.demo.train``.

Seeded and single-threaded, so that it writes the same weights again on the same machine and torch version.
Needs ``driftscope[demo]`` (scikit-learn, for its digits); about a minute on one core.
"""

from __future__ import annotations

import math

import click
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from driftscope.demo.classifier import LARGEST_PIXEL, TEST_DIGITS, WEIGHTS, DigitClassifier, accuracy
from driftscope.errors import DependencyMissing

SEED = 20261120
TEST_COUNT = 360
EPOCHS = 200
BATCH = 48
LEARNING_RATE = 2e-3


def load_split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scikit-learn's digits: train images (uint8), train labels, test images, test labels.

    Raises
    ------
    DependencyMissing
        If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as missing:
        raise DependencyMissing("training the demo's classifier", "sklearn", "demo") from missing
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.uint8)
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    test, train = order[:TEST_COUNT], order[TEST_COUNT:]
    return images[train], labels[train], images[test], labels[test]


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move a batch of images by up to one pixel, so that 1,437 digits are enough for a transformer."""
    dy, dx = (int(v) for v in torch.randint(-1, 2, (2,), generator=generator))
    padded = F.pad(images, (1, 1, 1, 1))
    return padded[:, 1 + dy : 9 + dy, 1 + dx : 9 + dx]


def train(images: Tensor, labels: Tensor) -> DigitClassifier:
    """Train on float images ``(n, 8, 8)`` from 0 to 1 and labels ``(n,)``; AdamW with a cosine schedule."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED + 1)
    model = DigitClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.02)
    steps = EPOCHS * math.ceil(len(labels) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(labels), generator=generator), BATCH):
            loss = F.cross_entropy(model(shifted(images[rows], generator)), labels[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    return model.eval()


def main() -> None:
    """Train, print the accuracies, write weights and test digits beside the model."""
    torch.set_num_threads(1)
    train_images, train_labels, test_images, test_labels = load_split()
    model = train(train_images.float() / LARGEST_PIXEL, train_labels)
    with torch.no_grad():
        for name, images, labels in (
            ("train", train_images, train_labels),
            ("test", test_images, test_labels),
        ):
            click.echo(f"{name} accuracy {accuracy(model(images.float() / LARGEST_PIXEL), labels):.4f}")
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, str(WEIGHTS))
    save_file({"images": test_images, "labels": test_labels.to(torch.uint8)}, str(TEST_DIGITS))
    click.echo(f"wrote {WEIGHTS.name} ({WEIGHTS.stat().st_size / 1e6:.2f} MB) and {TEST_DIGITS.name}")


if __name__ == "__main__":
    main()
