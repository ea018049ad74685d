"""The order of additions inside a kernel, found from the outside and verified by replay."""
