"""Running a study: cells out, rows in, kept as they come."""
