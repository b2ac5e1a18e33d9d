"""A self-contained page from saved records; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.report.figure import figure_png as figure_png
    from mindgap.lab.report.figure import figure_svg as figure_svg
    from mindgap.lab.report.page import write_page as write_page

__getattr__, __dir__ = lazy_names(__name__, {"figure_png": "figure", "figure_svg": "figure", "write_page": "page"})
