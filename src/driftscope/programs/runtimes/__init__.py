"""One file per runtime; each subclasses :class:`driftscope.programs.protocol.Program` and touches nothing else."""
