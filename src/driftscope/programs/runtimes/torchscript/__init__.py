"""TorchScript files: run in a worker process, and their runs recorded there as graphs."""
