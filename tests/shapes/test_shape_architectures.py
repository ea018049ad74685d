"""Three architectures of transformers, made from configurations, run unchanged."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.sweep


def check(model, inputs):
    return ds.check_shapes(model.eval(), inputs, targets=())


def relations_at(report, words: str) -> list[str]:
    return [c.text for c in report.relations if c.user_line is not None and words in c.user_line.file]


def test_a_decoder_with_its_cache():
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    cache = transformers.DynamicCache()
    cache.update(torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8), 0)
    inputs = {
        "input_ids": torch.randint(0, 40, (2, 4)),
        "attention_mask": torch.ones(2, 10, dtype=torch.int64),
        "past_key_values": cache,
    }
    report = check(transformers.LlamaForCausalLM(settings), inputs)
    assert report.program is not None
    total = "attention_mask.shape[1] == input_ids.shape[1] + past_key_values.layers[0].keys.shape[2]"
    assert total in relations_at(report, "masking_utils.py")
    assert report.status(inputs) == "right"
    assert not report.wrong


def test_an_encoder_as_long_as_its_table():
    torch.manual_seed(0)
    settings = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=12,
    )
    inputs = {"input_ids": torch.randint(0, 40, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.int64)}
    report = check(transformers.BertModel(settings), inputs)
    assert "input_ids.shape[1] <= 12" in str(report.relations)
    assert report.status({name: value[:, :4] for name, value in inputs.items()}) == "right"
    longer = {name: torch.ones(2, 13, dtype=torch.int64) for name in inputs}
    assert report.status(longer) == "invalid"


def test_an_image_model_that_branches_on_its_own_size():
    torch.manual_seed(0)
    settings = transformers.ViTConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=16,
        patch_size=4,
        num_channels=3,
    )
    inputs = ds.Inputs(args=(torch.randn(2, 3, 24, 20),), kwargs={"interpolate_pos_encoding": True})
    report = check(transformers.ViTModel(settings), inputs)
    assert "(pixel_values.shape[2]//4)*(pixel_values.shape[3]//4) != 16" in relations_at(report, "modeling_vit.py")
    assert report.status(inputs) == "right"
