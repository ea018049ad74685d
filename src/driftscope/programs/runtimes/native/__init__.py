"""Native runtimes in a worker process: the worker itself, the memory it shares with this process, and who asks it."""
