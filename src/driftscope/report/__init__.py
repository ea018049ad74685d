"""How records look: text for a terminal, one offline page for everything else. Draws records only, runs nothing."""
