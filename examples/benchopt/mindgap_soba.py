"""SOBA of mindgap for the folder ``solvers`` of benchmark_bilevel; ``mindgap_solver.py`` says
how.
"""

from benchmark_utils.mindgap_solver import MindgapSolver


class Solver(MindgapSolver):
    name = "mindgap-SOBA"
    key = "soba"
