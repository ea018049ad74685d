"""From anything a person may hold to a program; what a stranger made is read as data."""
