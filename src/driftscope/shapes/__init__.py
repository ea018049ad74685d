"""Dynamic shapes: relations between dimensions, spec repair, the domain, broadcasting, covering."""
