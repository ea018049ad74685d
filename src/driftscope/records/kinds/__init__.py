"""One file per kind of record."""
