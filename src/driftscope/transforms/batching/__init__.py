"""``ds.vmap``: what torch.vmap refuses, equal to the loop."""
