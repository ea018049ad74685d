"""Where two programs part."""
