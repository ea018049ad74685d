"""The noise floor: one ordinary rounding per step, injected into a lifted run."""
