"""
Limitations of torch.func, today
================================

The manual of ``torch.func`` lists what its transforms cannot do. Here every kind of example on that list is run on the
installed torch: what happens, on which expression, and the edit, tried before it is shown. Some limits are gone,
some are others than the list says, and several never raise: they give another answer in silence.
"""

# %%
# One line per example. ``show`` runs :func:`driftscope.check_transforms` and prints the outcome of the transforms asked
# for, then what is worth knowing: the code of the finding, the expression, and what to do.

# sphinx_gallery_thumbnail_path = 'docs/images/transforms-light.png'
import textwrap

import torch

import driftscope as ds

torch.manual_seed(0)
CHECKED = {}


def show(f, *examples, transforms=("vmap",), **options):
    report = ds.check_transforms(f, *examples, transforms=transforms, **options)
    CHECKED[f.__name__] = report
    print(f"{f.__name__:<26}" + "   ".join(f"{name}: {outcome}" for name, outcome in report.outcomes.items()))
    for finding in report.findings:
        if not finding.note:
            print(f"    {finding.code} `{finding.where.expression}`")
            print(textwrap.indent(textwrap.fill(finding.what, 92), "    "))
            fix = f"fix: {finding.fix}" + ("   [tried: it works]" if finding.verified else "")
            print(textwrap.indent(textwrap.fill(fix, 92), "    "))


# %%
# All transforms: nothing may be kept outside
# -------------------------------------------
#
# A transform wraps tensors. One that is stored in a global outlives it, and nothing is raised: the values agree and the
# global holds a wrapper. Returned beside the result (``has_aux=True``) it is a plain tensor.

kept = None


def stores_globally(x):
    global kept
    kept = x.sin()
    return kept.sin().sum()


def returns_both(x):
    middle = x.sin()
    return middle.sin().sum(), middle


x = torch.randn(3, 4, dtype=torch.float64)
show(stores_globally, x, transforms=("vmap", "grad"))
show(returns_both, x, transforms=("vmap", "grad"))
slope, middle = torch.func.grad(returns_both, has_aux=True)(x[0])
print(
    "returned:",
    type(middle).__name__,
    "wrapped" if torch._C._functorch.is_functorch_wrapped_tensor(middle) else "plain",
)

# %%
# All transforms: torch.autograd inside
# -------------------------------------
#
# A gradient taken by hand becomes one taken by ``torch.func``. The edit is a rewrite of several lines; it was run, and
# differentiated, before it is offered. That ``torch.autograd.grad(..., create_graph=True)`` on the input is accepted
# under ``grad`` is not on the list.


def gradient_inside(x):
    y = x.detach().clone().requires_grad_()
    z = y**2
    (g,) = torch.autograd.grad((z * y).sum(), y)
    return g


def backward_inside(x):
    y = x.detach().clone().requires_grad_()
    (y**3).sum().backward()
    return y.grad


def jacobian_inside(x):
    return torch.autograd.functional.jacobian(lambda z: z**3, x)


def hessian_inside(x):
    return torch.autograd.functional.hessian(lambda z: (z**3).sum(), x)


def jvp_inside(x):
    return torch.autograd.functional.jvp(lambda z: z**3, x, torch.ones_like(x))[1]


for f in (gradient_inside, backward_inside, jacobian_inside, hessian_inside, jvp_inside):
    show(f, x, transforms=("vmap", "grad"))
print(CHECKED["gradient_inside"].first.patch)

# %%
# vmap: Python's data structures
# ------------------------------
#
# The function runs once, so whatever it does to a list or to the terminal happens once. A list that the function closes
# over loses one entry instead of three; a list passed as an *argument* loses none, because vmap rebuilds it.

numbers = [2.0, 3.0, 5.0, 7.0]


def pops_and_prints(x):
    numbers.pop()
    print("hello!")
    return x.sum(0)


def uses_what_it_pops(x):
    return x * numbers.pop()


def pops_an_argument(x, values):
    values.pop()
    return x.sum(0)


show(pops_and_prints, torch.randn(3, 1))
show(uses_what_it_pops, torch.randn(3, 1))
show(pops_an_argument, torch.randn(3, 1), [0, 1, 2, 3], in_dims=(0, None))

# %%
# vmap: writing in place
# ----------------------
#
# A tensor without the mapped axis has no room for a value that has one. If it comes from outside, the loop would write
# to it three times in turn, and no edit can keep that. If it is made inside, it can be made with the mapped axis.


def adds_into_the_shared(x, y):
    x.add_(y)
    return x


def adds_into_its_own(x, y):
    x.add_(y)
    return x


def diagonal_of_zeros(v):
    result = torch.zeros(v.shape[0], v.shape[0])
    result.diagonal().copy_(v)
    return result


def diagonal_of_new_zeros(v):
    result = v.new_zeros(v.shape[0], v.shape[0])
    result.diagonal().copy_(v)
    return result


show(adds_into_the_shared, torch.randn(1), torch.randn(3, 1), in_dims=(None, 0))
show(adds_into_its_own, torch.randn(3, 1), torch.randn(3, 1))
show(diagonal_of_zeros, torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))
show(diagonal_of_new_zeros, torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))

# %%
# vmap: ``out=``
# --------------


def writes_out(x):
    result = torch.empty_like(x)
    torch.sin(x, out=result)
    return result * 2


show(writes_out, x)

# %%
# vmap: Python decides by a value
# -------------------------------
#
# ``if`` becomes ``torch.where`` where both branches are harmless for every example. The square root below is not: its
# derivative at a negative number is NaN, also where it is not taken, so that the edit gives it a safe number
# there. What depends on shapes alone was never limited, and ``torch.cond`` works by now.


def relu(x):
    if x > 0:
        return x
    return 0


def root_or_zero(x):
    if x > 0:
        return x.sqrt()
    return x * 0


def dot_or_sum(x):
    if x.dim() == 1:
        return torch.dot(x, x)
    return (x * x).sum()


scalars = torch.tensor([0.5, -1.25, 2.0])
show(relu, scalars)
show(root_or_zero, scalars)
show(dot_or_sum, x)

# %%
# vmap: ``.item()``
# -----------------
#
# The message speaks of ``.item()`` also where nobody wrote it: ``math.sqrt``, ``float``, a slice, a format.


def by_its_largest(x):
    return x * x.max().item()


def unit(x):
    return x / float(x.norm())


show(by_its_largest, x)
show(unit, x)

# %%
# vmap: sizes that depend on values
# ---------------------------------
#
# A ragged tensor exists by now (``torch.jagged``), and ``nonzero_static`` has a size. A masked write needs neither.

counts = torch.tensor([[0, 1, 2], [0, 0, 3]])


def positions(x):
    return torch.nonzero(x)


def any_sum(x):
    return x * (1 if torch.is_nonzero(x.sum()) else 2)


def positions_of_two(x):
    return torch.nonzero_static(x, size=2)


def zeroed(x):
    y = x.clone()
    y[y < 0] = 0.0
    return y


show(positions, counts)
show(any_sum, counts)
show(positions_of_two, counts)
show(zeroed, x)
print(ds.vmap(positions, ragged="jagged")(counts))

# %%
# vmap: randomness
# ----------------
#
# ``error`` asks which was meant. Other libraries' generators are not seen at all: one draw serves all examples.


def adds_noise(x):
    return x + torch.randn(())


def adds_numpy_noise(x):
    import numpy as np

    return x + np.random.randn()


ones = torch.ones(3)
for randomness in ("error", "different", "same"):
    show(adds_noise, ones, randomness=randomness)
show(adds_numpy_noise, ones, randomness="different")

# %%
# All of the above in one call
# ----------------------------
#
# ``ds.vmap`` has the signature of ``torch.vmap``. Where that works it is that; where it does not, examples that decide
# alike run together, and the result is the loop's, bit for bit, with the loop's derivatives.

refused = ((relu, scalars), (root_or_zero, scalars), (by_its_largest, x), (zeroed, x), (diagonal_of_zeros, x.float()))
for f, batch in refused:
    same = torch.equal(ds.vmap(f)(batch), torch.stack([torch.as_tensor(f(row)) for row in batch]))
    print(f"{f.__name__:<26}equal to the loop: {same}")

# %%
# A function that is not pure has no batch that equals its loop, and is refused with the reason.

try:
    ds.vmap(uses_what_it_pops)(x)
except ds.DriftscopeError as error:
    print(textwrap.fill(str(error), 96))

# %%
# Related: `Dynamic shapes and broadcasting <dynamic_shapes_and_broadcasting.html>`__,
# `Compare an export <compare_export.html>`__.
