"""How two results differ, and the judge: pure functions on values and measurements, no runtime."""
