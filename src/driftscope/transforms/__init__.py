"""Function transforms: what torch.func, compile and export refuse or silently change, on which line, and the edit.

How a check goes, one file per step; each knows only the ones above it.

========================  =============================================================================================
``places``                ``Place``: file, span and expression of user code; from frames, from tracebacks
``torch_internals``       every private name of torch, with the version it was read in
``process_state``         ``process_kept()``: RNGs, flags, default dtype, functorch levels, put back whatever happens
``world``                 ``World``: everything a function reaches; ``snapshot``, ``rewind`` in place, ``fingerprint``
``trace``                 ``Trace``: torch calls of one run with their user place and values peeled of wrappers
``subject``               ``Subject``, ``Suspect``, ``Proposal``: the plain data passed between analysis and repair
``running``               ``run_once``: one rewound, reseeded, traced run; ``run_loop``: one per example, the reference
``transforming``          the table of transforms and how two of them compose, each beside its plain reference
``agreement``             how two results differ: bits, rounding, dtype, shape, structure
``divergence``            the first operation whose output differs between two traces
``naming``                how a transform is written: other names, options, compositions
``examination``           the runs that a check needs, each made once
``tangents``              the first operation whose derivative is wrong or cut, against finite differences
``syntax``                the syntax tree around a place: is it the test of an ``if``, inside a ``try``, ...
``refusals``              from an exception to a suspect
``drifts``                from another value to a suspect
``traces_left``           state drift, leaked tensors, prints: what a run leaves behind
``slow``                  operators that vmap runs one by one, compiled functions that stay eager
``module_calls``          what a user's functional_call is given
``outcomes``              same, rounding, random, refused, wrong, ...
``wording``               findings in the user's own names
``catalogue``             T codes: why, and the fix in words
``checking``              ``check_transforms``, the public door
========================  =============================================================================================

The seam to the repairs
-----------------------
``checking`` calls ``transforms.repairs.propose(subject, suspect, plain) -> Proposal | None`` once per finding of a
refusal or a wrong value, inside ``process_kept()`` and with the world rewound before and after. ``propose`` may run
``subject.function`` and variants of it on ``subject.examples`` as often as it likes (rewinding with ``subject.world``
between runs); it returns None when no repair fits, and a :class:`~driftscope.transforms.subject.Proposal` otherwise:
``fix`` in words with the user's own names, ``patch`` a unified diff or "", ``verified`` True (equal to the loop, and to
its derivative), False (tried, withdrawn: the catalogue's words are printed instead) or None (not tried). ``propose``
never raises for a repair that fails.
"""
