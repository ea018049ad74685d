"""Why two programs differ, found by running them again: where they part, and what there is to change."""
