"""What every finding code means: one line each here, one page each in ``codes/``.

A code is a letter and three digits and never changes its meaning. N: numerics. W: weights. O: observation,
optimisers and binding. R: what a runtime refuses or cannot do. S: shapes. T: function transforms.
I: invariance.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import resources

from driftscope.errors import InputError
from driftscope.records.words import WORDS


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding code.

    Parameters
    ----------
    code : str
        As ``"N001"``.
    title : str
        A few words.
    meaning : str
        One line.
    """

    code: str
    title: str
    meaning: str

    @property
    def page(self) -> str:
        """The code's page, in Markdown."""
        return resources.files("driftscope.records").joinpath("codes", f"{self.code}.md").read_text(encoding="utf-8")


_TABLE = (
    ("N001", "different function", "Evaluated in float64, the two programs still differ: this is not rounding."),
    ("N002", "reserved", "Never issued."),
    ("N003", "cheaper arithmetic", "The same function in cheaper arithmetic, which is named and explains the drift."),
    ("N004", "overflow", "A value leaves the range of its format, or a domain: infinity where float64 has a number."),
    ("N005", "NaN on both sides", "Every element compared is NaN, so nothing was compared."),
    ("N006", "NaN or infinity elsewhere", "The two sides have NaN or infinity at different positions."),
    ("N007", "structure", "An output is missing, extra, or of another kind."),
    ("N008", "shape", "An output has another shape. Shapes are never broadcast to make them agree."),
    ("N009", "dtype", "An output or an input has another dtype."),
    ("N010", "exact values differ", "Integers, booleans or strings differ where no tie explains it."),
    ("N011", "tie within noise", "A choice between floats fell the other way, closer than rounding can tell."),
    ("N012", "ill-conditioned", "Rounding alone visibly moves this output, so its native values decide little."),
    ("N013", "unusually large rounding", "The same function, further apart than usual: still rounding, worth a look."),
    ("N014", "unseeded randomness", "A program does not repeat itself on the same inputs."),
    ("N015", "nondeterministic sums", "A program repeats itself only up to rounding: its sums change order."),
    ("N016", "same bits, another function", "The bits agree here, yet the functions differ: other inputs show it."),
    ("N017", "origin of NaN or infinity", "The first operator that makes NaN or infinity of finite inputs."),
    ("N025", "kernel outside its floor", "One operator's native kernel is less exact than its formats promise."),
    ("N026", "overflow as declared", "A device that computes in the declared format would overflow here."),
    ("N027", "lost as declared", "A device that computes in the declared format would give zero or NaN here."),
    ("N028", "rounding as declared", "What rounding every operator's result as declared would cost."),
    ("N031", "sums in another order", "A kernel adds the same terms in another order or format than the other side's."),
    ("W001", "constant rounded", "A stored number is the original one, rounded to the format it is stored in."),
    ("W002", "constant folded natively", "A constant was computed ahead of time in the model's own dtype."),
    ("W003", "weights stored narrower", "Weights are kept in a narrower format than the reference keeps them in."),
    ("W004", "weight changed", "A stored tensor is not the reference's: other numbers, in the part that is named."),
    ("W005", "weight transposed", "A stored tensor is the reference's with rows and columns exchanged."),
    ("W006", "weight reordered", "A stored tensor is the reference's, rolled, reversed or permuted along an axis."),
    ("W007", "weight rounded", "A stored tensor is the reference's, rounded to fewer bits than its format has."),
    ("W008", "weight scaled", "A stored tensor is the reference's, multiplied: all of it or single channels."),
    ("W009", "weight zeroed", "A stored tensor, or a part of it, is zero where the reference's is not."),
    ("W010", "weight of another layer", "A stored tensor holds the elements of another of the reference's tensors."),
    ("W011", "folded constant differs", "A tensor computed ahead of time is not what the reference computes."),
    ("W012", "quantised weight is wrong", "Integers, scale and zero point do not stand for the reference's weight."),
    ("W013", "quantised", "The same function with its weights quantised: the integers are those weights, rounded."),
    ("O001", "inputs bound by order", "Input names do not match, so inputs were matched by their order."),
    ("O002", "unused input", "An input is given that the program never reads."),
    ("O003", "train mode", "A module is in train() mode."),
    ("O004", "dropout active", "Dropout is active during the comparison."),
    ("O005", "inputs look exchanged", "Names and positions of the inputs contradict each other."),
    ("O006", "optimised graph differs", "The graph the session optimised is another function than the file."),
    ("O007", "optimised graph not lifted", "The graph the session optimised cannot be evaluated in float64."),
    ("O008", "computed in float32", "A provider computed a narrow format in float32 and rounded afterwards."),
    ("O009", "input rounded", "An input is rounded to the narrower side's format: both receive the same numbers."),
    ("O010", "range of integers guessed", "Integers were drawn from 0 and 1, because nothing tells their range."),
    ("O011", "unknown optimiser", "A graph optimiser to be left out is not known by that name."),
    ("O012", "observation disturbs", "Reading intermediate values changes the result: nothing is concluded from them."),
    ("O013", "optimiser moved the result", "Without the named optimisation the result is right; the line is given."),
    ("O014", "no optimiser to blame", "The drift stays when every optimisation that acted is left out."),
    ("O015", "exporter moved the result", "The exporter's optimisation, not the runtime, changed function or numbers."),
    ("O018", "optimisers looked at", "What each optimisation changes; none moves the result beyond rounding."),
    ("O020", "reproducer written", "A folder shows the drift with a short script that does not need driftscope."),
    ("O021", "program changes state", "Running a program changes the process or its own state; that was put back."),
    ("O022", "left out", "A step was left out to stay within a budget, or because it was interrupted."),
    ("O023", "complex numbers as pairs", "One side gives complex numbers, the other their two parts as reals."),
    ("R001", "refused to load", "A runtime refused to load a program."),
    ("R002", "refused to run", "A runtime refused to run a program."),
    ("R003", "graph not computed", "A runtime's numbers are further from its own graph than rounding allows."),
    ("R004", "cannot be lifted", "A program cannot be evaluated in float64; the operator in the way is named."),
    ("R005", "by floor only", "The verdict rests on the noise floor alone, because one side could not be lifted."),
    ("R006", "worker crashed", "A task ended its process: a fatal signal or an exit in native or Python code."),
    ("R007", "killed by a signal", "A signal other than a crash ended the process a task ran in."),
    ("R008", "out of memory", "A task needed more memory than it was allowed or than there was."),
    ("R009", "time limit passed", "A task was still running when its time was over."),
    ("S001", "spec refused", "torch.export refused the dynamic shapes asked for; they were repaired."),
    ("S002", "suggested fix not followed", "torch suggested to freeze or thin out an axis, which loses sizes."),
    ("S003", "relation no Dim can say", "Sizes are tied together by a condition that torch.export.Dim cannot write."),
    ("S004", "another way keeps more", "Every plain spec loses shapes that another way of exporting keeps."),
    ("S005", "refused in every way", "torch.export refuses the model, whatever is said of its sizes."),
    ("S006", "fails on its own example", "The model raises an error on the inputs it was given."),
    ("S007", "inputs do not bind", "The inputs do not fit the parameters of the model, or each other."),
    ("S008", "private name of torch moved", "Something that relations are read from is not where it was in torch."),
    ("S009", "size depends on values", "The shape of a result depends on values, not on shapes alone."),
    ("S010", "device missing", "The model needs a device that this machine does not have."),
    ("S011", "decided, not checked", "Sizes were compared while tracing; nothing checks the answer."),
    ("S020", "export silently wrong", "The exported program answers at these shapes, and the answer is another one."),
    ("S021", "ONNX silently wrong", "The ONNX file answers at these shapes, and the answer is another one."),
    ("S022", "AOTInductor silently wrong", "The compiled package answers at these shapes, but with another answer."),
    ("S023", "shape lost needlessly", "The export refuses shapes at which it would be right."),
    ("S024", "shape lost", "The export refuses shapes at which the model runs, and for a reason."),
    ("S025", "shape lost in a target", "A converted program refuses shapes at which the model runs."),
    ("S026", "runtime crashes", "A runtime takes its process down at these shapes."),
    ("S027", "accepts more", "A target answers at shapes at which the model itself refuses."),
    ("S028", "only checks keep it right", "Without its checks the program would be silently wrong at these shapes."),
    ("S029", "values are random", "The model does not repeat itself, so only shapes were compared."),
    ("S030", "target not probed", "A target could not be made or loaded, so nothing is known of it."),
    ("S031", "broadcasting not covered", "The capture keeps fewer broadcasting configurations than the model has."),
    ("S032", "plain ONNX silently wrong", "The ONNX file of a plain export is silently wrong at these shapes."),
    ("S033", "model changes itself", "A call changes what the model holds, so that a later call meets another model."),
    ("S034", "complex results as pairs", "An ONNX file returns complex numbers as real ones with one more axis of 2."),
    ("S035", "ways left out", "One export takes long, so fewer ways of exporting were tried."),
    ("I001", "rows meet", "A row's result depends on the content of the other rows of its batch."),
    ("I002", "batch size changes result", "A row's result changes with the size of its batch, by more than rounding."),
    ("I003", "padding changes result", "Padding, or what stands in it, changes results at positions that are none."),
    ("I004", "pieces change result", "A sequence in pieces, with a cache or a state, gives other results than whole."),
    ("I005", "circumstances change result", "Order, threads, layout or process change a result by more than rounding."),
    ("I006", "does not repeat itself", "The same call on the same inputs gives another result."),
    ("I007", "depends by rounding", "A result depends on how it is run, by no more than rounding."),
    ("I008", "variant refused", "The program refuses a variant that it was tried on, as another batch size."),
    ("T001", "tensor escapes",
     "A tensor that only makes sense inside a transform is kept by a global, an attribute or a container."),
    ("T002", "Python state differs",
     "Python code runs once under a transform, not once per example, so counters, lists and iterators end otherwise."),
    ("T003", "prints differ", "The function prints, and under the transform it runs another number of times."),
    ("T004", "randomness unknown to torch",
     "Random numbers of numpy or Python are drawn once under the transform, and once per example in the loop."),
    ("T005", "randomness not chosen",
     "vmap refuses a random operation because nothing says whether examples share their random numbers."),
    ("T006", "write into unmapped factory",
     "A tensor made inside the function by a factory has no mapped axis, and a value that has one is written into it."),
    ("T007", "write into outer tensor",
     "The function writes in place to a captured tensor or to an argument that is not mapped."),
    ("T008", "out= argument", "A call with `out=` has no batching rule, and no derivative."),
    ("T009", "control flow by values", "Python must choose one way where the examples may go different ways."),
    ("T010", "tensor to Python number",
     "Python is asked for one value (`item()`, `math.sqrt`, `numpy()`) where there is one per example."),
    ("T011", "shape decided by values",
     "The size of a result depends on the values, and examples may give different sizes."),
    ("T012", "torch.autograd inside",
     "The function differentiates with torch.autograd, whose graph torch.func does not see."),
    ("T013", "autograd.Function rule",
     "An `autograd.Function` lacks what the transform needs, or its rule disagrees with its forward."),
    ("T014", "custom operator rule", "An operator of `torch.library` has no derivative or batching rule."),
    ("T015", "operator without a rule", "An operator of torch has no batching rule or derivative for this transform."),
    ("T016", "slow fallback",
     "vmap runs an operator example by example: the values are right, the speed is the loop's."),
    ("T017", "returns no tensor",
     "vmap can only batch tensors, and the function returns a number, None or another object."),
    ("T018", "dtype under vmap",
     "A mapped scalar takes part in type promotion, where a plain scalar tensor does not, and the result is wider."),
    ("T019", "cut unseen by forward mode",
     "`no_grad`, `requires_grad` or a hook changes the derivative in reverse mode and not in forward mode."),
    ("T020", "derivative cut",
     "A value leaves the differentiated tensors: its part of the derivative is missing, in plain autograd as well."),
    ("T021", "refusal swallowed", "The transform refuses inside a `try`, and an `except` hides it."),
    ("T022", "identity of a tensor",
     "The function asks for the memory or the type of a tensor, which is a wrapper's or the batch's."),
    ("T023", "does not repeat itself",
     "Two plain runs from the same start differ, so no transform can be compared with it."),
    ("T024", "BatchNorm statistics", "BatchNorm in training mode writes statistics that all examples share."),
    ("T025", "ragged results", "The examples' results have different shapes."),
    ("T026", "seeding inside",
     "The function seeds the generator, so the loop gives every example the same numbers and vmap does not."),
    ("T028", "torch's rule is wrong",
     "The same tensors and the same arguments give another output under the transform."),
    ("T029", "compiled, stays eager",
     "A compiled function whose first call is under a transform is never compiled afterwards."),
    ("T030", "functional_call keys",
     "`functional_call` is given keys the module does not know, lacks some, or gives a value of another shape."),
    ("T031", "raises by itself", "The function raises without any transform."),
    ("T032", "no answer in time", "The function, or the transform, did not return within the time limit."),
    ("T033", "cannot be put back",
     "The function reaches a running generator, an open file, or more objects than are looked at."),
    ("T034", "no source", "The function is built in C; refusals cannot be placed on a line."),
    ("T035", "changes what callers hold", "The function writes to an argument or to what lives outside."),
    ("T036", "derivative dropped by where",
     "`torch.where` drops a branch whose derivative is NaN or infinite; reverse mode multiplies it by 0: NaN."),
    ("T099", "cause not identified", "The transform refuses or differs, and none of the known causes was found."),
)  # fmt: skip

RULES: dict[str, Rule] = {code: Rule(code, title, meaning) for code, title, meaning in _TABLE}


def rule(code: str) -> Rule:
    """Return what a code means.

    Raises
    ------
    InputError
        If there is no such code; the nearest ones are named.
    """
    wanted = code.strip().upper()
    if wanted in RULES:
        return RULES[wanted]
    near = difflib.get_close_matches(wanted, RULES, n=3, cutoff=0.5)
    near = near or difflib.get_close_matches(code.strip().lower(), WORDS, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(near)}?" if near else "`driftscope rule` lists them all."
    raise InputError(f"there is no finding code or word {code!r}; {hint}")
