"""The rules in one pass over memory: Numba on the CPU, Triton on CUDA.

``arithmetic`` has every formula once, as plain functions of numbers; ``cpu`` and ``cuda`` compile
those same functions and add only the walk over memory; ``plan`` keeps the addresses of the tensors
between steps.
"""
