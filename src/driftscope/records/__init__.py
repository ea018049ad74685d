"""What is kept: findings, verdicts, comparisons, the environment. Plain, frozen, versioned data; no tensor library."""
