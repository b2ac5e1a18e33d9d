"""A self-contained page from saved records; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.report.figure import figure_png, figure_svg
    from mindgap.lab.report.page import write_page

__getattr__, __dir__ = lazy_names(__name__)
