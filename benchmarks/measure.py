"""All benchmarks of the measure wing: noise, then sharpness and the monitor. See the two scripts for their options.

python benchmarks/measure.py --peers PEERS
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    for name in ("measure_noise", "measure_sharpness"):
        print(f"== {name}")
        module = importlib.import_module(name)
        module.main(sys.argv[1:] if name == "measure_sharpness" else [])


if __name__ == "__main__":
    main()
