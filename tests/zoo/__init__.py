"""Real architectures through real tools: honest pairs that must not be DIFFERENT, and bugs that must be found."""
