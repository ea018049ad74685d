"""Invariance: on what a result depends beside its inputs' values, where that comes in, and what takes it away.

How a check goes, one file per step; each knows only the ones above it.

==================  ================================================================================================
``running``         ``Runner``: one program on variants of its inputs; refusals are answers, runs are counted
``rows``            ``Rows``: which axes are the batch; rows selected, repeated, replaced by others
``judging``         ``Judge``: two results: same bits, rounding in measured floors, or different
``pieces``          a sequence in pieces, its caches and states handed on from one to the next
``trials``          one file per axis: what is varied, and which results must then agree
``tracing``         every value inside one run
``places``          the first operator whose bits change, and the value through which rows meet
``substitutes``     programs in which a statistic of the batch is one of each row
``repairs``         what takes the dependence away, tried before it is printed
``choices``         whether it matters: largest scores that change, margins against the floor
``wording``         findings
``checking``        ``check_invariance``, the public door
==================  ================================================================================================
"""
