"""Further draws of the same generator, registered after its first one.

They stand outside ``drawn.py`` because the hash of that file names the generator: a new seed is not
a new generator. Importing this file makes them known to ``drawn.titles`` and ``drawn.draft``.
"""

from __future__ import annotations

from drawn import DRAWS

#: Draws by name: a seed, sick drafts per cause, odd drafts per kind.
FURTHER = {
    "drawn-development-2": (40127733, 4, 1),
    "drawn-development-3": (581906254, 4, 1),
    "drawn-judged-2": (730158264, 4, 3),
}

DRAWS.update(FURTHER)
