"""What to do about your training run: which assumption fails (:func:`diagnose`), and what helps (:func:`prescribe`)."""

from mindgap.advise.diagnosis import ASSUMPTIONS, Finding, Interval, Readings, diagnose
from mindgap.advise.prescription import Advice, prescribe

__all__ = ["ASSUMPTIONS", "Advice", "Finding", "Interval", "Readings", "diagnose", "prescribe"]
