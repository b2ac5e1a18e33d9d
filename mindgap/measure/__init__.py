"""Instruments: what a loss surface and its gradient noise are really like."""
