"""The committed weights read digits they were not trained on."""

from __future__ import annotations

import pytest
import torch

from driftscope.demo.classifier import TEST_DIGITS, WEIGHTS, DigitClassifier, accuracy, classifier, digits


def test_weights_are_small_and_the_right_ones():
    assert WEIGHTS.stat().st_size < 1_000_000
    assert TEST_DIGITS.stat().st_size < 100_000
    assert not classifier().training


def test_classifier_reads_unseen_digits():
    images, labels = digits()
    with torch.no_grad():
        assert accuracy(classifier()(images), labels) > 0.97


def test_an_untrained_classifier_does_not():
    images, labels = digits()
    torch.manual_seed(0)
    with torch.no_grad():
        assert accuracy(DigitClassifier().eval()(images), labels) < 0.4


def test_digits_are_floats_from_0_to_1_and_can_be_fewer():
    images, labels = digits(12)
    assert images.shape == (12, 8, 8)
    assert labels.shape == (12,)
    assert images.dtype is torch.float32
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)


@pytest.mark.slow
def test_shipped_digits_are_scikit_learns_test_split():
    pytest.importorskip("sklearn")
    from driftscope.demo.train import load_split

    train_images, _, test_images, test_labels = load_split()
    images, labels = digits()
    assert torch.equal(images * 16, test_images.float())
    assert torch.equal(labels, test_labels)
    assert len(train_images) + len(images) == 1797
