"""Every kind of record as a sheet."""
