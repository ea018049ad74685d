"""Dynamic shapes: relations between dimensions, spec repair, the domain, broadcasting, covering.

The seams, in the order data flows:

* ``axes``: :func:`~driftscope.shapes.axes.sets_of` binds inputs to the model and takes them apart into
  ``Arguments``; ``Arguments.axes`` is the tuple of every ``Axis`` (``x.shape[1]``, or a Python integer ``n``).
  A **point** is one size per axis, in that order; points are ``int64`` arrays of shape (n, axes).
  ``AxisClasses.spread`` turns sizes per class into points.
* ``building``: ``InputBuilder(arguments).at(point)`` makes fresh arguments at a point; ``point_of(args, kwargs)``
  is its inverse.
* ``inference``: what the user said (or several sets show) becomes ``Wanted`` per axis: which axes vary, which are
  equal, which are derived.
* ``expressions``: one tree (``Number``, ``Size``, ``Operation``) with three back ends: numpy (``evaluate``, ``holds``),
  z3 (``to_z3``) and text (``text``). ``parsing`` reads it from guard strings and from sympy.
* ``reading``: :func:`~driftscope.shapes.reading.relations_of` reads everything a trace assumed, from the four places
  where torch records it, into ``relations.Relations``: ``recorded`` clauses and the fewest ``clauses`` that say the
  same. ``Relations.admits(points)`` is what ``ExportedProgram.module()`` lets pass, ``assumed(points)`` also holds
  what nothing checks, ``violated(point)`` names the clauses.
* ``capture``: ``capture(model, arguments, Attempt(mode, sizes))`` gives a ``Capture`` (exported program, mode, spec,
  spec_code, relations, ``module``, ``unguarded``) or a ``Refusal``.
* ``candidates``: :func:`~driftscope.shapes.candidates.ranked_captures` tries modes and repairs, and asks a measure
  ``(Capture) -> Coverage(right, lost, wrong)`` (the domain runner's) which covers most.
* ``checking``: :func:`~driftscope.shapes.checking.check_shapes` puts the report together;
  ``records.shape_report.ShapeRecord`` is its plain record.
* ``private_torch``: every private name of torch that is read, with the version it was read in.
"""
