"""The lines of a record: a header, rows, an end; and the verdict on a study.

A record is a text file of JSON lines: ``{"header": {...}}`` first, then ``{"row": {...}}`` for
every reading, and ``{"end": {...}}`` when the run is over. From version 3 on every line also has
``"sum"``, the CRC-32 of the text before it. Standard library only, so that anybody can read a
record without this package.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints
from zlib import crc32

#: Version of the written form; a reader refuses any other.
SCHEMA = 3

#: What may differ between two runs of the same settings on the same versions: clocks, machines, the
#: command typed.
TIMING_FIELDS = frozenset(
    {"seconds", "cpu_seconds", "wall", "started", "machine", "command", "versions"}
)

#: *not trained*: a control shows that the network has not learned enough to decide anything.
#: *error*: the pass rule raised an exception, or a record it needs is damaged.
VERDICTS = ("holds", "does not hold", "inconclusive", "not trained", "error")
OUTCOMES = ("done", "failed")

Row = dict[str, Any]
Key = TypeVar("Key")
Value = TypeVar("Value")

_COMPACT = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
)
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RecordError(ValueError):
    """A record cannot be read. The message names the file, the line and what is wrong."""


class NoRecordsError(RecordError):
    """A folder that should hold records is none, or holds none."""


@dataclass(frozen=True)
class Header:
    """What was run: enough to run it again."""

    study: str
    claim: str  # its number in ``docs/claims.md``
    scale: str
    method: str
    seed: int
    settings: dict[str, Any]
    #: content hash of (study, scale, method, seed, settings), which names the file.
    run: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # package -> version
    machine: dict[str, Any] = field(default_factory=dict)
    command: str = ""  # as typed
    started: str = ""  # when
    schema: int = SCHEMA
    registered: str = ""  # hash of the registration before the run; empty: there was none

    @property
    def key(self) -> str:
        """The content hash of what determines the numbers.

        Example:
            >>> a = Header("s", "S1", "quick", "m", 0, {"lr": 0.1})
            >>> (
            ...     len(a.key),
            ...     a.key
            ...     == Header("s", "S1", "quick", "m", 0, {"lr": 0.1}, command="typed later").key,
            ... )
            (12, True)
        """
        return content_hash([self.study, self.scale, self.method, self.seed, self.settings])


@dataclass(frozen=True)
class End:
    """How a run ended."""

    outcome: str  # one of ``OUTCOMES``
    seconds: float = 0.0  # inside the algorithm, without evaluation
    message: str = ""  # of the error that ended it
    #: seconds of the whole run (of its last part, if it was interrupted); None where unknown.
    wall: float | None = None


@dataclass(frozen=True)
class Run:
    """A record as read back: header, rows so far, and the end if there is one."""

    header: Header
    rows: tuple[Row, ...]
    end: End | None = None

    @property
    def done(self) -> bool:
        """Whether the run went to its end without an error."""
        return self.end is not None and self.end.outcome == "done"

    def column(self, name: str) -> list[Any]:
        """One quantity over the rows that have it."""
        return [row[name] for row in self.rows if name in row]


@dataclass(frozen=True)
class Verdict:
    """What the records of a study say about its claim."""

    verdict: str  # one of ``VERDICTS``; "" for none yet
    measured: str  # one sentence with the numbers
    #: what the rule measured, by name: numbers, intervals, or mappings of them.
    numbers: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)  # part of the rule -> yes, no or open
    #: the verdicts on the two readings of the statement; the same where it has one.
    as_printed: str = ""
    as_corrected: str = ""
    model: str = ""  # on what it was measured
    #: verdict -> how often the rule says it where all methods are equal.
    null: dict[str, float] = field(default_factory=dict)
    gate: str = ""  # the control that shows whether the network is trained
    length: str = ""  # how long it was trained beside the paper
    #: the rule's error rates (:class:`mindgap.lab.studies.power.Rates`).
    power: dict[str, Any] = field(default_factory=dict)
    registered: str = ""  # whether rule and sizes were written down before the runs, in words
    files: tuple[str, ...] = ()  # names of the records on which it rests
    seeds: int = 0  # how many it rests on

    def __post_init__(self) -> None:
        """Refuse an unknown verdict; what was read from JSON has a list of files."""
        if self.verdict and self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}")
        object.__setattr__(self, "files", tuple(self.files))


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Key -> its values; keys and values in order of appearance.

    Example:
        >>> grouped([("a", 1), ("b", 2), ("a", 3)])
        {'a': [1, 3], 'b': [2]}
    """
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def content_hash(value: Any) -> str:
    """Twelve hexadecimal digits that depend on a JSON-like value only."""
    return hashlib.blake2b(to_json(value).encode(), digest_size=6).hexdigest()


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Standard JSON with sorted keys; non-finite numbers become the strings NaN, Infinity,
    -Infinity. Without ``indent`` it is one line without spaces.

    Example:
        >>> to_json({"loss": float("inf"), "step": 1})
        '{"loss":"Infinity","step":1}'
    """
    if indent is not None:
        return json.dumps(
            _to_plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent
        )
    # nearly always everything is plain already, and looking at each value first costs more than
    # writing it
    try:
        return _COMPACT.encode(value)
    except (TypeError, ValueError):
        return _COMPACT.encode(_to_plain(value))


def from_json(text: str) -> Any:
    """The inverse of :func:`to_json`; a text that is no JSON, or nested too deeply, is a
    ``ValueError``.

    Example:
        >>> from_json('{"loss":"Infinity"}')
        {'loss': inf}
    """
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():  # half of a pair: such a text can be neither shown nor written
            to_json(value).encode("utf-8")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # Most lines have no such number: looking for the words is a tenth of the work of walking
    # through the values.
    return _restore(value) if '"NaN"' in text or 'Infinity"' in text else value


def _to_plain(value: Any) -> Any:
    """A value made of what JSON has; non-finite numbers become words, arrays become lists."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(k): _to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a number of numpy's or torch's
        return _to_plain(value.item())
    if hasattr(value, "tolist"):
        return _to_plain(value.tolist())
    raise TypeError(
        f"a record holds numbers, texts, lists and mappings, got {type(value).__name__}"
    )


def _restore(value: Any) -> Any:
    """The inverse of :func:`_to_plain` for the words of non-finite numbers."""
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, list):
        return [_restore(v) for v in value]
    if isinstance(value, dict):
        return {k: _restore(v) for k, v in value.items()}
    return value


_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    return get_type_hints(kind)


def check_fields(kind: type[Any], content: Mapping[str, Any], prefix: str = "") -> None:
    """Check the fields of a written form against the types of its dataclass: a file may be made up.

    Args:
        kind: the dataclass.
        content: field -> value, as read; fields may be missing.
        prefix: what stands before each name in errors, for forms inside others.

    Example:
        >>> check_fields(End, {"outcome": "done", "seconds": None})
        Traceback (most recent call last):
        ValueError: seconds must be a number, got None

    Raises:
        ValueError: a field of another type, or one that is not known; the message names it.
    """
    hints: dict[str, Any] = _hints(cast("Hashable", kind))
    for name, value in content.items():
        if name not in hints:
            raise ValueError(f"no field {prefix + str(name)!r} is known")
        _check(prefix + name, value, hints[name])


def _check(name: str, value: Any, hint: Any) -> None:
    """Raise ``ValueError`` for a value that is not of type ``hint``: a plain type, a union of such,
    a dataclass (as an object), or a tuple or mapping, whose entries are checked too.

    Args:
        name: of the field, for the error.
    """
    # Of ``dict[str, float]``: dict, and (str, float); tuples here hold entries of one type.
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if hint is Any:
        return
    if kind is UnionType:
        if not any(_fits(value, option) for option in inside):
            _refuse(name, str(hint), value)
    elif isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, dict):
            _refuse(name, "an object", value)
        check_fields(kind, value, f"{name}.")
    elif kind is tuple:
        if not isinstance(value, (list, tuple)):
            _refuse(name, "a list", value)
        for number, entry in enumerate(value):
            _check(f"{name}[{number}]", entry, inside[0])
    elif kind in (dict, Mapping):
        if not isinstance(value, dict):
            _refuse(name, "an object", value)
        for key, entry in value.items():
            _check(f"{name}.{key}", entry, inside[1])
    elif not _fits(value, kind):
        _refuse(name, _WORDS.get(kind, kind.__name__), value)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has exactly that type; a whole number also counts as a float."""
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def _refuse(name: str, expected: str, value: Any) -> NoReturn:
    """Raise the error of the field ``name`` with a wrong value; ``expected`` in words."""
    raise ValueError(f"{name} must be {expected}, got {shorten(repr(value))}")


def shorten(text: str) -> str:
    """A text of at most 60 letters for an error: the beginning of a longer one."""
    return text if len(text) <= 60 else text[:57] + "..."


def line(kind: str, content: Any) -> str:
    """One line of a record with its checksum, without its newline. ``kind`` is "header", "row" or
    "end"; ``content`` a mapping or a dataclass.

    Example:
        >>> line("row", {"step": 0})
        '{"row":{"step":0},"sum":"ee1dfdad"}'
    """
    fields = vars(content) if hasattr(content, "__dataclass_fields__") else content
    text = to_json({kind: fields}).removesuffix("}")
    return f'{text},"sum":"{crc32(text.encode()):08x}"}}'


def read_line(raw: bytes) -> tuple[str, dict[str, Any], bool]:
    """Kind and content of a line of a record (without its newline), and whether it has a checksum
    (lines before version 3 have none).

    Example:
        >>> read_line(b'{"row":{"step":1},"sum":"ee1dfdad"}')
        Traceback (most recent call last):
        ValueError: the checksum does not fit the line

    Raises:
        ValueError: the line is damaged.
    """
    text, mark, ending = raw.rpartition(b',"sum":"')
    checksum, closing = ending[:8], ending[8:]
    summed = bool(mark) and len(ending) == 10  # eight digits, a quotation mark and a brace
    if summed and f"{crc32(text):08x}" != checksum.decode("ascii", "replace"):
        raise ValueError("the checksum does not fit the line")
    content = from_json((text + b"}" if summed else raw).decode("utf-8"))
    if not isinstance(content, dict) or len(content) != 1 or (summed and closing != b'"}'):
        raise ValueError("a line is an object with one key")
    ((kind, body),) = content.items()
    if not isinstance(body, dict):
        raise ValueError("a line holds an object")
    return kind, body, summed


def without_timing(content: Mapping[str, Any]) -> dict[str, Any]:
    """A row, header or end less what may differ between equal runs (clock, machine, command).

    Example:
        >>> without_timing({"step": 1, "seconds": 0.3})
        {'step': 1}
    """
    return {k: v for k, v in content.items() if k not in TIMING_FIELDS}
