"""Programs of a hostile or unlucky user, for ``file.py:name``."""

import dataclasses
import sys

import torch
from torch import nn

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Returns(nn.Module):
    """Returns what it is told to, with a tensor made of its input inside."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x * 0.5)


class Linear(nn.Module):
    """A product that only takes 8 columns."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def forward(self, x):
        return self.inner(x)


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    name: str = "answer"


def healthy():
    torch.manual_seed(0)
    return Linear().eval(), (X,)


def two_inputs():
    return lambda x, y: x + y


def fails():
    raise ZeroDivisionError("in the factory")


def leaves():
    sys.exit(0)


def leaves_later():
    return Returns(lambda x: sys.exit(0)), (X,)


def breaks():
    return Returns(lambda x: list(x.shape)[7]), (X,)


def recurses():
    def again(x):
        return again(x)

    return again, (X,)


def returns_number():
    return 7


def returns_nothing():
    return None


def returns_three():
    return Linear(), (X,), "and more"


def returns_class():
    return Linear


def returns_path():
    return "nowhere.onnx"


def returns_self():
    return returns_self


def bad_inputs():
    return Linear(), object()


def bad_spec():
    return Linear(), {"x": "4xeight:float32"}


def wrong_columns():
    return Linear(), (torch.ones(4, 9),)


def wrong_dtype():
    return Linear(), (X.double(),)


def nine_columns():
    return nn.Linear(9, 3).eval(), (torch.ones(4, 9),)


def on_meta():
    with torch.device("meta"):
        return Linear(), (X,)


def meta_input():
    return Linear(), (X.to("meta"),)


def nan_input():
    torch.manual_seed(0)
    return Linear().eval(), (torch.full((4, 8), torch.nan),)


def some_nan():
    torch.manual_seed(0)
    x = X.clone()
    x[1, 2] = torch.nan
    return Linear().eval(), (x,)


def empty():
    torch.manual_seed(0)
    return Linear().eval(), (torch.empty(0, 8),)


def scalar():
    return Returns(lambda x: x.sum()), (torch.tensor(2.0),)


def strided():
    torch.manual_seed(0)
    return Linear().eval(), (X.t().contiguous().t()[::2],)


def text():
    return Returns(lambda x: "text"), (X,)


def text_and_tensor():
    return Returns(lambda x: {"text": "text", "x": x}), (X,)


def nothing():
    return Returns(lambda x: None), (X,)


def no_outputs():
    return Returns(lambda x: ()), (X,)


def nested():
    return Returns(lambda x: {"a": [x, (x + 1, None)], "b": Answer(x), "n": 3, "f": 0.5, "flag": True}), (X,)


def objects():
    return Returns(lambda x: {"odd": object(), "x": x}), (X,)


def numbers():
    return Returns(lambda x: float(x.sum())), (X,)


def function_output():
    return Returns(lambda x: len), (X,)


def sparse_output():
    return Returns(lambda x: x.relu().to_sparse()), (X,)


def complex_output():
    return Returns(lambda x: torch.fft.fft(x)), (X,)


def float8_output():
    return Returns(lambda x: x.to(torch.float8_e4m3fn)), (X,)


def quantised_output():
    return Returns(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)), (X,)


def nested_tensor_output():
    return Returns(lambda x: torch.nested.nested_tensor([x[0], x[:2, 0]])), (X,)


def cyclic_output():
    def cycle(x):
        found = [x]
        found.append(found)
        return found

    return Returns(cycle), (X,)


def strange_keys():
    return Returns(lambda x: {1: x, (2, 3): x, "<script>alert(1)</script>": x, None: x}), (X,)


def random_output():
    return Returns(lambda x: x + torch.rand_like(x)), (X,)
