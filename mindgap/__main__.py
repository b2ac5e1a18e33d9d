"""``python -m mindgap`` is the command ``mindgap``."""

from mindgap.cli import main

if __name__ == "__main__":
    main()
