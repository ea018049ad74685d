"""``python -m driftscope`` is the command ``driftscope``."""

from driftscope.cli import main

if __name__ == "__main__":
    main()
