"""``python -m mindgap`` is the command ``mindgap``."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command, or say what to install when the laboratory's packages are missing."""
    missing = [name for name in ("typer", "rich", "joblib") if find_spec(name) is None]
    if missing:
        print(f"mindgap: error: the command needs {', '.join(missing)}: pip install 'mindgap[lab]'", file=sys.stderr)
        raise SystemExit(2)
    from mindgap.cli import main as command

    command()


if __name__ == "__main__":
    main()
