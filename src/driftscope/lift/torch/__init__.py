"""torch programs in float64: a tape of ATen calls, recorded natively and replayed."""
