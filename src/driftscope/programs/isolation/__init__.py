"""Worker processes: whatever a program does to its process, driftscope answers."""
