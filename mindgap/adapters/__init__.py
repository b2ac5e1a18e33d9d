"""Other people's trainers: the monitor inside Lightning's and Hugging Face's loops.

``mindgap.adapters.lightning`` needs the extra ``mindgap[lightning]``,
``mindgap.adapters.transformers`` the extra ``mindgap[transformers]``; both import their library
when their function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.adapters import lightning as lightning, transformers as transformers
else:
    from mindgap.base.names import lazy_names

    _MODULES = (
        "lightning",
        "transformers",
    )
    __getattr__, __dir__ = lazy_names(__name__, {}, _MODULES)
    __all__ = __dir__()
