"""Arrays that take long to make are made once per machine and kept in the cache folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from filelock import FileLock

from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.fetch import cache_folder
from mindgap.record.store import replacing
from mindgap.record.unpacking import checked_zip

Array = np.ndarray[Any, Any]


def prepared(name: str, make: Callable[[], Mapping[str, Array]]) -> dict[str, Array]:
    """Read the arrays of that name from the cache folder; where they are not there yet, call
    ``make`` and write what it returns there first.

    Of several processes that ask at the same time one makes them; the others wait and read them.

    Args:
        name: of the file; it must say all that the arrays depend on.
        make: returns name -> array.

    Example:
        >>> prepared("ones-3", lambda: {"ones": np.ones(3)})  # doctest: +SKIP
        {'ones': array([1., 1., 1.])}
    """
    path = cache_folder() / "prepared" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.is_file():
            with replacing(path) as file:
                np.savez(file, **make())  # type: ignore[arg-type]
    with np.load(checked_zip(path)) as arrays:
        return {key: arrays[key] for key in arrays.files}


check_arguments(__name__)
