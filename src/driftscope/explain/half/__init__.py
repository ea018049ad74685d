"""What a half format does to a program."""
