"""Speed of the bilevel methods: ours on each backend against loops written by hand and installed
peers, in one run.

    python benchmarks/bilevel.py ijcnn1
        # compiled, 14 methods, 49,990 / 91,701 samples, 22 unknowns, batch 64
    python benchmarks/bilevel.py cleaning
        # 784 x 10 weights, 5,000 sample weights, batch 64: eager and compiled
    python benchmarks/bilevel.py quadratic
        # 32,768 / 1,024 samples, 100 / 10 unknowns: time to a level
    python benchmarks/bilevel.py scaling       # cost against samples, dimension and batch
    python benchmarks/bilevel.py captured [--device cuda]
        # torch.compile and CUDA graphs beside eager torch and JAX
    python benchmarks/bilevel.py rnn [--device cuda] [--hidden 4096]
        # hyper-representation, eager torch, memory too

Rates are the best of several interleaved repeats; on a shared machine use the ratios. Compile time
is apart. Only torch is needed for ``rnn`` and for the eager half of ``cleaning``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bilevel_timing  # noqa: E402
import torch  # noqa: E402
from bilevel_captured import part_captured  # noqa: E402
from bilevel_cleaning import part_cleaning  # noqa: E402
from bilevel_ijcnn1 import part_ijcnn1  # noqa: E402
from bilevel_quadratic import part_quadratic  # noqa: E402
from bilevel_rnn import part_rnn  # noqa: E402
from bilevel_scaling import part_scaling  # noqa: E402

PARTS = {
    "ijcnn1": part_ijcnn1,
    "cleaning": part_cleaning,
    "quadratic": part_quadratic,
    "scaling": part_scaling,
    "rnn": part_rnn,
    "captured": part_captured,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--unroll", type=int, default=1)
    parser.add_argument("--methods", default="")
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument(
        "--clock",
        choices=list(bilevel_timing.CLOCK),
        default="wall",
        help="cpu: processor time, for a busy machine",
    )
    options = parser.parse_args()
    bilevel_timing.use_clock(options.clock)
    torch.set_num_threads(1)
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
