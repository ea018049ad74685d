"""From another value to a suspect: by the first operation that differs, and by what differs there."""

from __future__ import annotations

import ast

from driftscope.transforms.agreement import differ
from driftscope.transforms.diagnose import syntax, tangents
from driftscope.transforms.diagnose.divergence import Divergence, first_divergence
from driftscope.transforms.diagnose.traces_left import StateDrift, call_place, state_drifts, write_place
from driftscope.transforms.examination import Examination, Question
from driftscope.transforms.subject import Suspicion
from driftscope.transforms.world.places import Place, place_of
from driftscope.transforms.world.reach import names_in
from driftscope.transforms.world.trace import Event

RANDOM = frozenset(
    ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "normal", "bernoulli",
     "multinomial",
     "poisson", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_",
     "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "rrelu", "binomial",
     "gumbel_softmax", "scaled_dot_product_attention", "multi_head_attention_forward", "fractional_max_pool2d",
     "fractional_max_pool3d", "native_dropout", "_sample_dirichlet", "_standard_gamma", "rrelu_", "dropout_")
)  # fmt: skip
_SEEDING = ("manual_seed", "seed", "set_rng_state", "set_state", "setstate")
_IDENTITIES = (
    "id",
    "data_ptr",
    "storage_offset",
    "type",
    "untyped_storage",
    "__class__",
    "hash",
    "is_contiguous",
    "stride",
)


def suspect_of(question: Question, examination: Examination) -> Suspicion:
    """Name the cause and the place of a difference in value, dtype, shape or structure."""
    if question.difference is not None and question.difference.kind == "escaped":
        return _escaped(question, examination)
    swallowed = _swallowed(question)
    if swallowed is not None:
        return swallowed
    moved = (examination.loop.moved | question.plain.moved | question.lifted.moved) - {"torch"}
    if moved:
        return _suspect("T004", question, _drawing_place(examination), name=f"{', '.join(sorted(moved))} random")
    generator = next((d for d in state_drifts(examination) if _is_generator(d)), None)
    if generator is not None:
        place = _drawing_place(examination)
        return _suspect("T004", question, place or write_place(examination, generator.root), name=generator.root)
    bare = _without_compiler(question, examination)
    if bare is not None:
        return suspect_of(bare, examination)
    divergence = None
    if question.lifted.events and question.levels[0].kind == "map" and len(question.levels) == 1:
        divergence = _divergence(question, examination)
    if divergence is not None:
        return by_divergence(divergence, question, examination)
    if any(level.kind == "derivative" for level in question.levels):
        found = tangents.suspect_of(question, examination)
        if found is not None:
            return found
    return _by_state(question, examination)


def _without_compiler(question: Question, examination: Examination) -> Question | None:
    """Take the compiler out of a composition; None where the rest alone is right, or where nothing is left."""
    levels = tuple(level for level in question.levels if level.kind not in ("compile", "export"))
    if not levels or len(levels) == len(question.levels):
        return None
    bare = Question(question.name, levels, question.plain, examination.lifted_run(levels))
    if bare.lifted.error is not None:
        return None
    derivative = any(level.kind == "derivative" for level in levels)
    bare.difference = differ(question.plain.value, bare.lifted.value, any_float=derivative)
    return None if bare.difference.agrees else bare


def _divergence(question: Question, examination: Examination) -> Divergence | None:
    """Find the first call that differs; with ``chunk_size``, chunk by chunk."""
    parts, events = examination.loop.parts, question.lifted.events
    chunk = question.levels[0].options.get("chunk_size") or len(parts)
    chunks = -(-len(parts) // chunk)
    if len(events) % chunks:
        return first_divergence(parts, events)
    length = len(events) // chunks
    for i in range(chunks):
        found = first_divergence(parts[i * chunk : (i + 1) * chunk], events[i * length : (i + 1) * length])
        if found is not None:
            return found
    return None


def _is_generator(drift: StateDrift) -> bool:
    """Whether what drifted is a generator of numpy or Python; torch's own are known to the transforms."""
    return drift.plain.startswith("generator at")


def _suspect(
    cause: str, question: Question, place: Place | None, *, name: str = "", event: Event | None = None
) -> Suspicion:
    operation = event.name if event is not None else ""
    return Suspicion(cause, question.name, "wrong", place, operation, subject_name=name, event=event)


def _escaped(question: Question, examination: Examination) -> Suspicion:
    events = question.plain.events or examination.loop.events
    data = next((e for e in events if e.name == "Tensor.data.__get__"), None)
    if data is not None:
        return _suspect("T012", question, data.place, event=data)
    state = state_drifts(examination)
    if state:
        return _suspect("T001", question, write_place(examination, state[0].root), name=state[0].root)
    own = call_place(examination, ("grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "vmap", "linearize"))
    # torch 2.13 exports a derivative of torch.func as a program that returns a FakeTensor.
    inside = any(level.kind in ("map", "derivative") for level in question.levels)
    return _suspect("T028" if own is not None or inside else "T099", question, own)


def _swallowed(question: Question) -> Suspicion | None:
    """A call that was refused though the run went on: someone caught the refusal."""
    plain = {(e.name, e.place) for e in question.plain.events if e.raised}
    for event in question.lifted.events:
        place = event.place
        if not event.raised or place is None or (event.name, place) in plain:
            continue
        if syntax.handler_around(place) is not None or syntax.node_at(place) is None:
            return _suspect("T021", question, place, event=event)
    return None


def _drawing_place(examination: Examination) -> Place | None:
    """Return where numpy or Python draws: the first call through a name ``random`` or of a generator's method."""
    for function in examination.subject.world.functions:
        near = place_of(function.__code__, 0)
        code = function.__code__
        for node in syntax.nodes_of_function(code):
            if isinstance(node, ast.Call) and "torch" not in ast.unparse(node.func):
                text = ast.unparse(node.func)
                if "random" in text or text.split(".")[-1] in _DRAWS:
                    return syntax.place_of_node(near, node)
    return None


_DRAWS = ("randn", "rand", "randint", "normal", "uniform", "gauss", "choice", "choices", "shuffle", "sample",
          "integers",
          "standard_normal", "permutation", "betavariate", "randrange", "getrandbits")  # fmt: skip


def seeds_inside(examination: Examination) -> bool:
    """Whether the function seeds a generator itself."""
    return any(names_in(f.__code__) & set(_SEEDING) for f in examination.subject.world.functions)


def is_random(event: Event | None) -> bool:
    """Whether a call draws random numbers."""
    return event is not None and event.operation in RANDOM


def by_divergence(divergence: Divergence, question: Question, examination: Examination) -> Suspicion:
    """Name the cause of the first call that differs."""
    event = divergence.event or next(iter(divergence.plain_events), None)
    place = event.place if event is not None else None
    cause, name = _divergence_cause(divergence, question, examination)
    if cause == "T026":
        place = call_place(examination, _SEEDING) or place
    elif cause == "T022" and divergence.kind != "answer":
        place = _identity_place(examination) or place
    elif cause == "T021":
        place = _guarded_place(examination) or place
    elif cause == "T002" and name:
        place = write_place(examination, name) or place
    return Suspicion(
        cause,
        question.name,
        "wrong",
        place,
        event.name if event is not None else "",
        subject_name=name,
        event=divergence.event,
        plain_events=divergence.plain_events,
        evidence=_evidence(divergence),
    )


def _evidence(divergence: Divergence) -> dict[str, object]:
    found: dict[str, object] = {"first_divergence": divergence.index, "kind": divergence.kind}
    if divergence.event is not None:
        found["operation"] = divergence.event.name
    if divergence.difference is not None:
        found["difference"] = divergence.difference.detail
    return found


def _divergence_cause(divergence: Divergence, question: Question, examination: Examination) -> tuple[str, str]:
    event = divergence.event or next(iter(divergence.plain_events), None)
    if divergence.kind == "answer":
        return "T022", ""
    if any(map(is_random, (event, *divergence.plain_events))):
        return ("T026" if seeds_inside(examination) else "T005"), ""
    if event is not None and (event.function_place is not None or event.operation == "custom_function_call"):
        return "T013", ""
    state = [d.root for d in state_drifts(examination) if not d.path.startswith("argument")]
    if divergence.kind == "path":
        return _path_cause(examination, state)
    if event is not None and event.operation.startswith("as_strided"):
        return "T022", ""
    if divergence.kind == "dtype" and divergence.same_inputs:
        return "T018", ""
    if divergence.same_inputs and divergence.same_arguments:
        return "T028", ""
    if divergence.same_inputs or not divergence.same_arguments:
        return _path_cause(examination, state)
    if event is not None and event.in_place:
        return "T007", syntax.written_name(event.place)
    return ("T002", state[0]) if state else ("T099", "")


def _path_cause(examination: Examination, state: list[str]) -> tuple[str, str]:
    """Another call, or other Python numbers: what did Python know that differed?"""
    if state:
        return "T002", state[0]
    if _guarded_place(examination) is not None:
        return "T021", ""
    return ("T022", "") if _identity_place(examination) is not None else ("T099", "")


def _guarded_place(examination: Examination) -> Place | None:
    """Return the body of the first ``try`` with an ``except`` in the user's code."""
    for function in examination.subject.world.functions:
        code = function.__code__
        near = place_of(code, 0)
        for node in syntax.nodes_of_function(code):
            if isinstance(node, ast.Try) and node.handlers:
                calls = [n for n in ast.walk(ast.Module(node.body, [])) if isinstance(n, ast.Call)]
                return syntax.place_of_node(near, calls[0] if calls else node.body[0])
    return None


def _identity_place(examination: Examination) -> Place | None:
    """Return where the user's code asks for the identity, the type or the memory of a tensor."""
    found = call_place(examination, _IDENTITIES)
    if found is not None:
        return found
    for function in examination.subject.world.functions:
        code = function.__code__
        for node in syntax.nodes_of_function(code):
            if isinstance(node, ast.Compare) and _asks_identity(node):
                return syntax.place_of_node(place_of(code, 0), node)
    return None


def _asks_identity(node: ast.Compare) -> bool:
    """Whether a comparison is ``is`` between two things neither of which is a constant such as None."""
    by_identity = any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
    return by_identity and not any(isinstance(c, ast.Constant) for c in node.comparators)


def _by_state(question: Question, examination: Examination) -> Suspicion:
    """Without a trace of the transform (compile, export): by what the plain program changes and asks."""
    state = state_drifts(examination)
    events = question.plain.events or examination.loop.events
    applied = next((e for e in events if e.function_place is not None), None)
    derivative = any(level.kind == "derivative" for level in question.levels)
    if applied is not None and derivative:
        return _suspect("T013", question, applied.function_place, event=applied)
    if seeds_inside(examination) and any(is_random(e) for e in events):
        return _suspect("T026", question, call_place(examination, _SEEDING))
    if state:
        from driftscope.transforms.diagnose.traces_left import in_place_write

        place = in_place_write(state[0].root, question, examination)
        cause = "T007" if place is not None else "T002"
        return _suspect(cause, question, place or write_place(examination, state[0].root), name=state[0].root)
    asked = next((e for e in events if e.question and e.operation in ("storage_offset", "data_ptr")), None)
    if asked is not None:
        return _suspect("T022", question, asked.place, event=asked)
    cause, _ = _path_cause(examination, [])
    if cause == "T021":
        return _suspect(cause, question, _guarded_place(examination))
    if cause == "T022":
        return _suspect(cause, question, _identity_place(examination))
    data = next((e for e in events if e.name == "Tensor.data.__get__"), None)
    if data is not None:
        return _suspect("T012", question, data.place, event=data)
    own = call_place(examination, _AUTOGRAD)
    return _suspect("T012" if own is not None else "T099", question, own)


# Functions of torch.autograd that differentiate inside of the function.
_AUTOGRAD = ("jacobian", "hessian", "hvp", "vhp", "jvp", "vjp", "backward", "requires_grad_")

_CLOCKS = ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "now", "today", "urandom", "uuid4",
          "getpid",
           "token_hex", "randbits", "id", "data_ptr")  # fmt: skip


def clock_place(examination: Examination) -> Place | None:
    """Return where the function asks for something that changes by itself: a clock, an address, entropy."""
    return call_place(examination, _CLOCKS)


def draw_note(question: Question, examination: Examination) -> Suspicion | None:
    """Note where random numbers are drawn: the values are other ones than the loop's, as was asked for."""
    event = next((e for e in examination.loop.events if is_random(e)), None)
    if event is None:
        return None
    what = f"{question.name} draws other random numbers at `{event.place.expression if event.place else event.name}`"
    return Suspicion("T005", question.name, "random", event.place, event.name, event=event, what=what)
