"""Models of transformers, tiny and random, in three formats."""

from __future__ import annotations

import pytest
import torch
from float64_truth import assert_truth, distance, lift, truth

from driftscope.programs.value_trees import flatten

transformers = pytest.importorskip("transformers")
IDS = torch.tensor([[3, 9, 27, 17, 51, 25, 11], [5, 15, 45, 7, 21, 63, 61]])
PADDING = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def _gpt2():
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config), (IDS,), {}


def _llama():
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=1, max_position_embeddings=32, **SIZES)
    return transformers.LlamaForCausalLM(config), (IDS,), {"attention_mask": PADDING}


def _bert():
    config = transformers.BertConfig(vocab_size=64, max_position_embeddings=32, **SIZES)
    return transformers.BertModel(config), (IDS,), {"attention_mask": PADDING}


def _vit():
    config = transformers.ViTConfig(image_size=16, patch_size=4, **SIZES)
    return transformers.ViTModel(config), (torch.linspace(-1, 1, 1536).reshape(2, 3, 16, 16).sin(),), {}


MODELS = {"gpt2": _gpt2, "llama": _llama, "bert": _bert, "vit": _vit}


def _model(name):
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    return model.eval(), args, kwargs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_models_without_casts_are_themselves_in_float64(name):
    model, args, kwargs = _model(name)
    assert_truth(model, *args, **kwargs)


def test_llama_casts_to_float32_do_not_round():
    """`model.double()` rounds at the explicit casts of its norms; the lift does not, and is nearer to the truth."""
    model, args, kwargs = _model("llama")
    lifted = lift(model, *args, **kwargs).run()
    rounded = truth(model, *args, **kwargs)
    assert 1e-9 < distance(lifted, rounded) < 1e-5
    original = torch.Tensor.to
    exact = _without_rounding_casts(model, args, kwargs)
    assert torch.Tensor.to is original
    assert distance(lifted, exact) <= 1e-13


def _without_rounding_casts(model, args, kwargs):
    """The model in float64 with every cast to float32 ignored, but for the tables that are constants."""
    rotary = model.model.rotary_emb
    positions = torch.arange(7)[None]
    native = rotary(torch.zeros(1, dtype=torch.float32), positions)
    to = torch.Tensor.to

    def kept(self, *args, **options):
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        return to(self, *args, **{k: torch.float64 if v is torch.float32 else v for k, v in options.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", kept)
        patch.setattr(type(rotary), "forward", lambda *a, **k: tuple(t.double() for t in native))
        return truth(model, *args, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_half_precision_models_are_near_their_lift(name, dtype):
    """Native results differ by their own rounding, which is a few units of their format."""
    model, args, kwargs = _model(name)
    model = model.to(dtype)
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    with torch.no_grad():
        native = [v for _, v in flatten(model(*args, **kwargs))[0]]
    outputs = lift(model, *args, **kwargs).run()
    assert {o.format for o in outputs} == {dtype}
    assert 0 < distance(outputs, [v.double() for v in native]) < 16 * torch.finfo(dtype).eps


def test_a_cache_given_as_input_grows_in_the_lift_only():
    model, (ids,), _ = _model("llama")
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :4], past_key_values=cache)
        outputs = lift(model, ids[:, 4:], past_key_values=cache).run()
        assert cache.get_seq_length() == 4
        native = model(ids[:, 4:], past_key_values=cache)
    assert [str(o.path) for o in outputs] == [str(p) for p, _ in flatten(native)[0]]
    assert distance(outputs, [v.double() for _, v in flatten(native)[0]]) < 1e-5


def test_rotary_tables_are_constants_computed_natively():
    model, args, kwargs = _model("llama")
    tape = lift(model, *args, **kwargs)
    tables = model.model.rotary_emb(torch.zeros(1), torch.arange(7)[None])
    computed = [c.value for c in tape.constants() if c.origin == "computed" and c.frontier]
    for table in tables:
        assert any(c.numel() == table.numel() and torch.equal(c.flatten(), table.flatten()) for c in computed)


def test_exported_bert_has_transformers_lines():
    model, (ids,), kwargs = _model("bert")
    exported = torch.export.export(model, (ids,), kwargs)
    from driftscope.lift.torch.tape import lift_torch

    tape = lift_torch(exported.module(), (ids,), kwargs, exported=exported)
    assert distance(tape.run(), truth(model, ids, **kwargs)) <= 1e-13
    places = [e.where for e in tape.tape.entries if e.facts.name == "native_layer_norm"]
    assert all("transformers" in (p.file or "") and p.expression for p in places)
    assert places[-1].module == "encoder.layer.1.output.LayerNorm"
