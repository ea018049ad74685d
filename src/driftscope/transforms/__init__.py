"""Function transforms: what torch.func, compile and export refuse or silently change, on which line, and the edit."""
