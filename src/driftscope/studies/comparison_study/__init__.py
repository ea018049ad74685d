"""Many comparisons as one study: pairs of programs listed in a file, or found in a folder."""
