"""Numbers alone: formats, ulps, the rounding-error model. Nothing here knows what a program is."""
