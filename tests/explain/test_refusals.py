"""What is said of a refusal comes from the runtime's words, and from nothing else."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds
from driftscope.errors import InputError, ProgramError, RuntimeRefused
from driftscope.explain.refusals import meaning_of, refusal_finding, unusable

# Words that torch 2.13 and onnxruntime 1.31 really use.
WORDS = [
    ("opset 99 of ai.onnx is newer than it supports, which is 26", "older opset"),
    ("Load model from a.onnx Unsupported model IR version: 99, max supported IR version: 13", "older opset"),
    ("In Node, (odd, Frobnicate) , Error No Op registered for Frobnicate with domain_version of 20", "local function"),
    ("Fatal error: my.domain:Frob(-1) is not a registered function/op", "local function"),
    ("Could not find an implementation for Gemm(13) node with name ''", "has a kernel for"),
    ("\"addmm_impl_cpu_\" not implemented for 'Float8_e4m3fn'", "has a kernel for"),
    (
        "Type Error: Type (tensor(float16)) of output arg (y) of node (n) does not match expected type (tensor(float))",
        "leave that operator in float32",
    ),
    ("This is an invalid model. Type Error: Type 'tensor(bfloat16)' of input parameter (x) is invalid.", "it takes"),
    ("This is an invalid model. Error: the graph is not acyclic.", "onnx.checker"),
    ("this build has no CUDAExecutionProvider; it has CPUExecutionProvider", "one that is here"),
    ("Failed to allocate memory for requested buffer of size 17179869184", "smaller batch"),
    ("mat1 and mat2 shapes cannot be multiplied (4x9 and 8x3)", "shapes and dtypes the program was written for"),
    ("IndexError: index out of range in self", "dtypes the program was written for"),
    ("mat1 and mat2 must have the same dtype, but got Double and Float", "the dtype of its weights"),
    ("TypeError: linear(): argument 'input' (position 1) must be Tensor, not object", "the program was written for"),
    ("Tensor on device meta is not on the expected device cpu!", "Load the weights"),
]


@pytest.mark.parametrize(("words", "fix"), WORDS)
def test_the_advice_follows_the_words(words: str, fix: str) -> None:
    assert fix in refusal_finding("B", RuntimeRefused("onnxruntime", "load", words)).fix


@pytest.mark.parametrize(
    "words", ["IndexError: list index out of range", "ZeroDivisionError: division by zero", "an odd day", ""]
)
def test_what_is_not_understood_gets_no_advice(words: str) -> None:
    finding = refusal_finding("A", RuntimeRefused("torch", "run", words))
    assert (finding.why, finding.fix) == ("", "")
    assert unusable("A", "model", RuntimeRefused("torch", "run", words)) is None


def test_an_invalid_model_is_bad_input_and_a_missing_kernel_is_a_finding() -> None:
    cyclic = RuntimeRefused(
        "onnxruntime", "load", "Load model from m.onnx failed:This is an invalid model: not acyclic."
    )
    error = unusable("B", "m.onnx", cyclic)
    assert isinstance(error, ProgramError)
    assert "onnxruntime says: This is an invalid model: not acyclic. Export it again" in str(error)
    missing = RuntimeRefused("onnxruntime", "load", "Could not find an implementation for Gemm(13)")
    assert unusable("B", "m.onnx", missing) is None


def test_inputs_are_judged_by_the_reference() -> None:
    refusal = RuntimeRefused("torch", "run", "mat1 and mat2 shapes cannot be multiplied (4x9 and 8x3)")
    assert isinstance(unusable("A", "model", refusal), InputError)
    assert unusable("B", "model", refusal) is None
    assert meaning_of(refusal).fault == "inputs"


class Halved(torch.nn.Module):
    """Weights of another dtype than the inputs, met two lines into the user's own code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x + 1
        return self.linear(shifted)


class Mixing(torch.nn.Module):
    """Makes a tensor of the default dtype, whatever that of its inputs is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * torch.arange(4.0))


@pytest.mark.parametrize("turned", [False, True], ids=["B", "A"])
@pytest.mark.parametrize(
    ("module", "dtype"), [(Halved(), torch.float32), (Mixing().half(), torch.float16)], ids=["inputs", "inside"]
)
def test_dtypes_that_do_not_go_together_are_bad_input_on_either_side(module, dtype, turned):
    pair = (torch.nn.Identity(), module)
    with pytest.raises(InputError, match="does not run on these inputs: torch says: ") as told:
        ds.compare(*(pair[::-1] if turned else pair), torch.ones(2, 4, dtype=dtype))
    assert "test_refusals.py:" in str(told.value)
    assert "dtype='float16'" in str(told.value)


@pytest.mark.parametrize(
    "words",
    [
        "mixed dtype (CPU): expect parameter to have scalar type of Float",
        "expected m1 and m2 to have the same dtype, but got: float != c10::Half",
        "Expected query, key, and value to have the same dtype, but got query.dtype: float key.dtype: c10::Half",
    ],
)
def test_torch_says_so_in_many_words(words):
    assert meaning_of(RuntimeRefused("torch", "run", words)).fault == "dtypes"


def test_a_module_whose_inputs_are_converted_runs():
    fine = ds.compare(torch.nn.Identity(), ds.torch(torch.nn.Identity(), dtype="float16"), torch.ones(2, 4))
    assert not any(f.code == "R002" for f in fine.findings)
