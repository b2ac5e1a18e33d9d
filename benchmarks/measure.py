"""All benchmarks of the measure wing: noise, then sharpness and the monitor. See the two scripts
for their options.

python benchmarks/measure.py --peers PEERS
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    given = sys.argv[1:]
    both = [argument for argument in given if argument == "--small"]
    for name, arguments in (("measure_noise", both), ("measure_sharpness", given)):
        print(f"== {name}", flush=True)
        importlib.import_module(name).main(arguments)


if __name__ == "__main__":
    main()
