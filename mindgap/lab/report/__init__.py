"""A self-contained page from saved records; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.lab.report.figure import figure_png as figure_png, figure_svg as figure_svg
    from mindgap.lab.report.page import write_page as write_page
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "figure_png": "figure",
        "figure_svg": "figure",
        "write_page": "page",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
