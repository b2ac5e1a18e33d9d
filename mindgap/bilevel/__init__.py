"""Stochastic bilevel methods behind one interface."""
