"""The study of layer normalisations that are exchanged for each other."""
