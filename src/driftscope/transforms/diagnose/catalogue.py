"""The causes: what a T code means for a person who meets it, and the edit in words.

The wording is filled with the user's own names: ``{expression}``, ``{name}``, ``{transform}``, ``{operation}``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of the catalogue.

    Parameters
    ----------
    code : str
    why : str
        Why the transform refuses, or what it silently does.
    fix : str
        The smallest edit.
    note : bool
        True for what needs no action.
    """

    code: str
    why: str
    fix: str
    note: bool = False


_TABLE = (
    Cause(
        "T001",
        "{transform} wraps the tensors of the function; one that is kept in {name} outlives the transform and"
        " is {kind}.",
        "return the tensor instead of keeping it in {name} (for derivatives: has_aux=True)",
    ),
    Cause(
        "T002",
        "{transform} runs the function once, not once per example, so Python state changes once: {name}.",
        "pass {name} as an argument and return its new value, or use chunk_size=1, which is the loop",
    ),
    Cause(
        "T003",
        "{transform} runs the function another number of times than the plain program does, and so it prints.",
        "return the value and print it outside of the transform",
    ),
    Cause(
        "T004",
        "{transform} sees one draw where the loop draws per example: it knows no generators but torch's.",
        'draw with torch (and randomness="different"), or draw outside and pass the numbers as a mapped argument',
    ),
    Cause(
        "T005",
        "{transform} does not guess whether examples should share random numbers.",
        'pass randomness="different" or "same" to vmap, or draw outside and pass the numbers as a mapped argument',
    ),
    Cause(
        "T006",
        "{name} is created inside the function without the mapped axis, so a value that has one does not fit.",
        "create {name} from a mapped tensor: {factory}",
    ),
    Cause(
        "T007",
        "{name} exists outside the function and is shared by all examples: the loop writes to it in turn,"
        " {transform} cannot.",
        "return the new value of {name} and update it outside of the transform",
    ),
    Cause("T008", "{transform} has no rules for out= arguments.", "use the returned value instead of out="),
    Cause(
        "T009",
        "Python must choose one way, and the examples may go different ways.",
        "choose with torch.where, or torch.cond, or let ds.vmap split the batch by path",
    ),
    Cause(
        "T010",
        "{left}.",
        "stay in tensors: {tensor_form}",
    ),
    Cause(
        "T011",
        "the size of the result depends on the values, and the examples may give different sizes.",
        "mask with torch.where, or give the size (nonzero_static(size=), one_hot(num_classes=),"
        " repeat_interleave(output_size=)), or use ds.vmap",
    ),
    Cause(
        "T012",
        "torch.func transforms do not see into torch.autograd's own graph.",
        "use torch.func.grad, vjp, jvp, jacrev or hessian inside the function instead of torch.autograd",
    ),
    Cause(
        "T013",
        "the autograd.Function here does not tell {transform} what it needs, or tells it something that"
        " disagrees with its forward.",
        "split forward and setup_context, and set generate_vmap_rule = True or write"
        " vmap and jvp staticmethods that agree with forward",
    ),
    Cause(
        "T014",
        "the custom operator has no rule for {transform}.",
        "register one with torch.library.register_autograd and torch.library.register_vmap",
    ),
    Cause(
        "T015",
        "{operation} has no rule for {transform} in this version of torch.",
        "write {operation} with operators that have one, or loop over this part",
    ),
    Cause(
        "T016",
        "{operation} has no batching rule and runs example by example inside vmap: right, and as slow as the loop.",
        "use an equivalent operator that has one, where speed matters",
        note=True,
    ),
    Cause(
        "T017",
        "vmap can only batch tensors, and the function returns something else.",
        "return tensors (torch.as_tensor), or keep the other value outside of the transform",
    ),
    Cause(
        "T018",
        "type promotion treats a scalar tensor weakly; under vmap it has an axis more and counts fully.",
        "cast the scalar tensor to the wanted dtype before {operation}",
    ),
    Cause(
        "T019",
        "forward-mode derivatives do not look at torch.no_grad, requires_grad or hooks, reverse-mode ones do.",
        "cut with .detach() instead, which both modes respect",
    ),
    Cause(
        "T020",
        "the value leaves the tensors that are differentiated here; the derivative of this path is missing, in"
        " plain autograd too.",
        "keep it a tensor if the derivative is wanted: {tensor_form}",
        note=True,
    ),
    Cause(
        "T021",
        "{transform} refuses inside a try, and the except hides it: the fallback is used for all examples.",
        "catch the one exception that is meant, and call outside the try what must not fail",
    ),
    Cause(
        "T022",
        "this asks for the identity or the memory of a tensor, which under {transform} belongs to a wrapper or"
        " to the whole batch.",
        "do not decide by memory or identity; clone() copies a tensor under every transform",
    ),
    Cause(
        "T023",
        "two plain runs from the same start give different values.",
        "seed its randomness, or pass clocks and addresses as arguments",
    ),
    Cause(
        "T024",
        "BatchNorm writes running statistics that are shared by all examples.",
        "use GroupNorm, track_running_stats=False, or torch.func.replace_all_batch_norm_modules_",
    ),
    Cause("T025", "the examples' results have different shapes.", 'pad to one shape, or use ds.vmap(ragged="jagged")'),
    Cause(
        "T026",
        "the generator is seeded inside the function: the loop gives every example the same numbers.",
        "seed outside of the function",
    ),
    Cause(
        "T028",
        "the same tensors and arguments give another output: torch's own rule for {operation} under {transform}"
        " is wrong here.",
        "map the other operands too, or use an equivalent operator; consider reporting it to torch",
    ),
    Cause(
        "T029",
        "a compiled function whose first call is under a transform runs eagerly there and is never compiled"
        " afterwards.",
        "call it once plainly before it is transformed, or compile the transformed function instead",
    ),
    Cause(
        "T030",
        "functional_call uses the module's own value for a key that is missing and ignores one it does not know.",
        "pass strict=True and dict(module.named_parameters())",
    ),
    Cause("T031", "the function raises by itself, without any transform.", "mend the function first"),
    Cause("T032", "the function did not return within the time limit.", "give smaller examples or a larger time_limit"),
    Cause(
        "T033",
        "part of what the function reaches cannot be put back to its start.",
        "pass it as an argument; values that depend on it cannot be compared",
        note=True,
    ),
    Cause(
        "T034", "the function is built in C, so no place in it can be shown.", "wrap it in a Python function", note=True
    ),
    Cause(
        "T035",
        "the function changes what its caller holds, whatever the transform.",
        "clone the argument first, or return the new value; a memo that only saves time may stay",
        note=True,
    ),
    Cause(
        "T036",
        "the derivative of {operation} is NaN or infinite where its value is not chosen: forward mode drops it, reverse"
        " mode (plain autograd too) multiplies it by 0, which gives NaN.",
        "choose the input as well, so that the branch is finite everywhere:"
        " torch.where(ok, torch.sqrt(torch.where(ok, x, 1.0)), 0.0)",
    ),
    Cause("T099", "the cause was not identified; the evidence shows where the values part.", ""),
)

CAUSES: dict[str, Cause] = {cause.code: cause for cause in _TABLE}
