"""Which optimisation of a runtime, a compiler or an exporter moved a result."""
