"""What is run and how: value trees, inputs, loading, one file per runtime."""
