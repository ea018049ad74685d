"""Constants that are the same number, rounded or folded, made the same number again; then certified."""
