"""The study of ``A @ X + B`` computed in different ways."""
