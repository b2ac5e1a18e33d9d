"""Checkpoints on disk: one written form for states of bilevel methods, trials of the laboratory and
pieces of a race.

A file is, in this order,

* the line ``mindgap checkpoint 1``,
* 48 bytes: the length of the header, the length of the arrays (both 8 bytes, lowest first) and a
  checksum (BLAKE2b, 32 bytes) of these two lengths and of all that follows,
* the header: JSON with the kind of the checkpoint, what it belongs to, its content, and dtype,
  shape and place of every array,
* the arrays as raw bytes, each at a multiple of 64.

Nothing in it is executed. Content is made of tensors, numbers, texts, None, lists, tuples and
mappings. A file appears by atomic rename once it is whole and on the disk.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import RuleError, error_words, fail, shortened
from mindgap.record.store import replacing

MAGIC = b"mindgap checkpoint 1\n"
#: What is added to the name of a damaged file.
ASIDE = ".damaged"
#: Header and arrays begin at multiples of so many bytes.
_ALIGN = 64
#: Bytes of the two lengths (8 each) and the checksum (32) behind ``MAGIC``.
_SUMS = 48
#: Nested lists and mappings; more are a mistake or an attack.
_DEEPEST = 60
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
}
_ATOMS = (bool, int, float, str, type(None))


class CheckpointError(RuleError):
    """A checkpoint that cannot be used; ``reason`` says of which kind the trouble is."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        #: "unreadable" (the system refuses it), "foreign" (no checkpoint of this program),
        #: "damaged" (length, checksum or content are wrong) or "other" (of another run)
        self.reason = reason


def _refuse(path: Path, rule: str, got: str, reason: str) -> NoReturn:
    """Raise the error of a file that cannot be used: it breaks a rule ("must be whole"), because
    ``got`` was found. ``reason`` is the kind of trouble, as in ``CheckpointError``.
    """
    raise CheckpointError(f"checkpoint {rule}, got {got} in {path}", reason)


def write_checkpoint(path: Path, kind: str, content: Any, of: Mapping[str, str]) -> None:
    """Write a checkpoint; an earlier file stays until the new one is whole and on the disk.

    Args:
        path: the file.
        kind: what it is a checkpoint of, in words.
        content: tensors, numbers, texts, None, lists, tuples and mappings, nested as one likes.
        of: what it belongs to (data, start, settings, code ...), name -> short text; reading
            compares it.

    Raises:
        CheckpointError: the content holds something else.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.ckpt"
        >>> write_checkpoint(path, "example", {"w": torch.ones(2), 3: (1, None)}, {"seed": "0"})
        >>> read_checkpoint(path, "example", {"seed": "0"})
        {'w': tensor([1., 1.]), 3: (1, None)}
    """
    # Filled by ``_encode``, one entry per tensor: its bytes, and what the header says of it.
    arrays: list[np.ndarray[Any, Any]] = []
    descriptions: list[dict[str, Any]] = []
    tree = _encode(content, arrays, descriptions, "content", 0)
    header = {"kind": kind, "of": dict(of), "arrays": descriptions, "content": tree}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    # ``-n % _ALIGN`` is what n lacks to the next multiple; JSON may end in spaces.
    text += b" " * (-(len(MAGIC) + _SUMS + len(text)) % _ALIGN)
    chunks: list[Any] = []  # each array, then zeros up to the next multiple of ``_ALIGN``
    for array in arrays:
        chunks += [array, bytes(-array.nbytes % _ALIGN)]
    arrays_length = sum(len(chunk) for chunk in chunks)
    sizes = len(text).to_bytes(8, "little") + arrays_length.to_bytes(8, "little")
    checksum = blake2b(sizes + text, digest_size=32)
    for chunk in chunks:
        checksum.update(chunk)
    with replacing(path) as file:
        file.write(MAGIC + sizes + checksum.digest() + text)
        for chunk in chunks:
            file.write(chunk)


def _encode(
    value: Any,
    arrays: list[np.ndarray[Any, Any]],
    descriptions: list[dict[str, Any]],
    place: str,
    depth: int,
) -> Any:
    """A value in the form of the header's JSON: atoms as they are, any other as an object with one
    key for its kind, such as ``{"tensor": 0}`` or ``{"list": [...]}``. ``_decode`` is the inverse.

    Args:
        arrays: the bytes of each tensor are appended.
        descriptions: dtype, shape and so on of each tensor are appended.
        place: where the value stands in the content, for an error.
        depth: how many lists and mappings it stands in.

    Raises:
        CheckpointError: the value is of no kind that a checkpoint holds, or nested too deeply.
    """
    if depth > _DEEPEST:
        raise CheckpointError(f"checkpoint must be nested at most {_DEEPEST} deep", "content")
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Tensor):
        descriptions.append(_store_tensor(value, arrays, place))
        return {"tensor": len(descriptions) - 1}

    def inside(entry: Any, name: object) -> Any:
        """An entry of the value in the same form, one level deeper; its tensors join ``arrays``. An
        error says by ``name`` which entry of ``place`` it is.
        """
        return _encode(entry, arrays, descriptions, f"{place}[{name!r}]", depth + 1)

    if type(value) in (list, tuple, torch.Size):
        kind = "list" if type(value) is list else "tuple"
        return {kind: [inside(entry, i) for i, entry in enumerate(value)]}
    # Keys may be of any kind, which JSON's own keys may not: pairs in a list.
    if type(value) in (dict, OrderedDict):
        pairs = [[inside(key, "key"), inside(entry, key)] for key, entry in value.items()]
        if type(value) is dict:
            return {"dict": pairs}
        versions = getattr(value, "_metadata", None)  # torch keeps versions of modules there
        return {"ordered": pairs, "versions": inside(versions, "_metadata")}
    if isinstance(value, np.generic):
        return inside(value.item(), "number")
    rule = "must hold tensors, numbers, texts, None, lists, tuples and mappings only"
    raise CheckpointError(f"checkpoint {rule}, got {type(value).__name__} at {place}", "content")


def _store_tensor(value: Tensor, arrays: list[np.ndarray[Any, Any]], place: str) -> dict[str, Any]:
    """The description of a tensor for the header; its bytes are appended to ``arrays``.

    Args:
        place: where the tensor stands in the content, for the error if it is not dense.
    """
    value = value.detach()
    name = str(value.dtype).removeprefix("torch.")
    if name not in _DTYPES or value.layout is not torch.strided or value.is_meta:
        form = f"{value.layout} of {value.dtype} on {value.device}"
        raise CheckpointError(
            f"checkpoint must hold dense tensors only, got {form} at {place}", "content"
        )
    # Axes from the slowest to the fastest: a tensor keeps its order in memory.
    strides: tuple[int, ...] = value.stride()
    order = sorted(range(value.dim()), key=lambda axis: -strides[axis])
    flat = value.permute(order).resolve_conj().resolve_neg().contiguous().cpu().reshape(-1)
    raw = flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
    arrays.append(raw.numpy())
    return {
        "dtype": name,
        "shape": list(value.shape),
        "order": order,
        "device": str(value.device),
        "bytes": int(raw.numel()),
    }


def read_checkpoint(
    path: Path, kind: str, of: Mapping[str, str], device: torch.device | None = None
) -> Any:
    """The content of a checkpoint, after a look at its checksum and at what it belongs to.

    Args:
        path: written by :func:`write_checkpoint`.
        kind: what it must be a checkpoint of.
        of: what it must belong to, name -> short text, as when it was written; a text that differs
            ends in an error that says so.
        device: where its tensors go; where they were if not given.

    Raises:
        CheckpointError: it cannot be read, is no checkpoint, is damaged, or is of another run.
    """
    try:
        with path.open("rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(data)
    except OSError as error:
        _refuse(path, "must be a file that can be read", str(error.strerror or error), "unreadable")
    if not data.startswith(MAGIC):
        rule = f"must begin with {MAGIC.decode().strip()!r} (older forms are not read)"
        _refuse(path, rule, repr(bytes(data[:24])), "foreign")
    header, arrays = _open_header(path, data)
    if header["kind"] != kind:
        _refuse(path, f"must be that of a {kind}", repr(header["kind"]), "other")
    _check_belongs(path, of, header["of"])
    try:
        cpu_tensors = list(_read_tensors(header["arrays"], arrays))
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
        _refuse(path, "must be whole", f"damaged arrays ({error_words(error)})", "damaged")
    tensors: list[Tensor | None] = []
    for tensor, description in zip(cpu_tensors, header["arrays"], strict=True):
        try:
            tensors.append(tensor.to(device or torch.device(description["device"])))
        except Exception:  # torch raises an error of its own per missing device
            rule = "must be of a device of this machine"
            _refuse(path, rule, repr(description["device"]), "other")
    try:
        content = _decode(header["content"], tensors, 0)
        if any(tensor is not None for tensor in tensors):  # ``_decode`` takes those that are used
            raise ValueError("an array that nothing refers to")
    except (ValueError, TypeError, KeyError, IndexError) as error:
        _refuse(path, "must be whole", f"a damaged content ({error_words(error)})", "damaged")
    return content


def _open_header(path: Path, data: bytearray) -> tuple[dict[str, Any], memoryview]:
    """Check the bytes of a checkpoint file against its lengths and its checksum.

    Args:
        path: the file, for errors.
        data: all its bytes, ``MAGIC`` included.

    Returns:
        The header, whose parts have their types, and the bytes of all arrays.

    Raises:
        CheckpointError: the file is damaged.
    """
    begin = len(MAGIC) + _SUMS  # of the header
    sums = bytes(data[len(MAGIC) : begin])  # two lengths of 8 bytes, then the checksum
    header_length, arrays_length = (int.from_bytes(sums[i : i + 8], "little") for i in (0, 8))
    file_length = begin + header_length + arrays_length
    if len(sums) < _SUMS or file_length != len(data):
        _refuse(path, f"must have its {file_length} bytes", f"{len(data)} bytes", "damaged")
    body = memoryview(data)[begin:]
    checksum = blake2b(sums[:16], digest_size=32)
    checksum.update(body)
    if checksum.digest() != sums[16:]:
        _refuse(path, "must fit its checksum", "other bytes", "damaged")
    try:
        header = json.loads(bytes(body[:header_length]))
        fits = (
            isinstance(header["kind"], str)
            and isinstance(header["of"], dict)
            and all(isinstance(text, str) for text in header["of"].values())
            and isinstance(header["arrays"], list)
            and "content" in header
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        _refuse(path, "must have a header", f"a damaged one ({error_words(error)})", "damaged")
    if not fits:
        _refuse(path, "must have a header", "a damaged one", "damaged")
    return header, body[header_length:]


def _check_belongs(path: Path, of: Mapping[str, str], in_header: Mapping[str, str]) -> None:
    """Refuse a checkpoint that belongs to something else, with an error that says what differs.

    Args:
        of: what it must belong to, name -> short text.
        in_header: what its header says that it belongs to, in the same form.
    """
    names = [*of, *(name for name in in_header if name not in of)]
    different = [name for name in names if of.get(name) != in_header.get(name)]
    if different:
        wanted = ", and to the ".join(f"{name} {of.get(name, '(none)')}" for name in different)
        got = "; ".join(f"{name} {shortened(in_header.get(name, '(none)'))}" for name in different)
        _refuse(path, f"must belong to the {wanted}", got, "other")


def _check_count(value: Any) -> int:
    """The value; a ``ValueError`` where it is no whole number of at least 0."""
    if type(value) is not int or value < 0:
        raise ValueError("a number that must be whole")
    return value


def _read_tensors(descriptions: list[Any], arrays: memoryview) -> Iterator[Tensor]:
    """The tensors in the order in which they were written, as copies on the CPU.

    Args:
        descriptions: from the header, as ``_store_tensor`` made them, but not yet checked.
        arrays: the bytes of all of them, each at a multiple of ``_ALIGN``.

    Raises:
        ValueError: a description cannot be true of these bytes.
    """
    offset = 0
    for description in descriptions:
        dtype = _DTYPES[description["dtype"]]
        shape = [_check_count(n) for n in description["shape"]]
        order = [_check_count(n) for n in description["order"]]
        if sorted(order) != list(range(len(shape))):
            raise ValueError("an order of axes that is no permutation")
        count, size = math.prod(shape), _check_count(description["bytes"])
        if size != count * dtype.itemsize or offset + size > len(arrays):
            raise ValueError("an array of another size")
        if not re.fullmatch(r"[a-z]+(:[0-9]{1,3})?", str(description["device"])):
            raise ValueError("a text that names no device")
        if count:
            flat = torch.frombuffer(arrays, dtype=torch.uint8, count=size, offset=offset).clone()
            if dtype is torch.bool and int(flat.max()) > 1:
                raise ValueError("a truth value other than 0 and 1")
            flat = flat.view(dtype)
        else:
            flat = torch.empty(0, dtype=dtype)
        # The bytes lie with the axes in ``order``; this puts them back.
        axes_back = [order.index(axis) for axis in range(len(order))]
        yield flat.reshape([shape[axis] for axis in order]).permute(axes_back)
        offset += size + -size % _ALIGN  # the next multiple of ``_ALIGN``


def _decode(node: Any, tensors: list[Tensor | None], depth: int) -> Any:
    """The value that a node of the header describes: the inverse of ``_encode``.

    Args:
        node: a part of the header's JSON, not yet checked.
        tensors: all tensors; one that is used becomes None there, because each may be used once.
        depth: how many lists and mappings the node stands in.

    Raises:
        ValueError: the node describes no value.
    """
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if type(node) in _ATOMS:
        return node
    if type(node) is not dict:
        raise ValueError("a part of unknown form")
    if node.keys() == {"tensor"}:
        index = _check_count(node["tensor"])
        tensor, tensors[index] = tensors[index], None
        if tensor is None:
            raise ValueError("an array that two parts refer to")
        return tensor
    if node.keys() == {"list"} or node.keys() == {"tuple"}:
        ((kind, nodes),) = node.items()
        entries = [_decode(entry, tensors, depth + 1) for entry in _check_list(nodes)]
        return entries if kind == "list" else tuple(entries)
    if node.keys() not in ({"dict"}, {"ordered", "versions"}):
        raise ValueError("a part of unknown form")
    # Both kinds of mapping are lists of pairs.
    pairs = {}
    for key_and_value in _check_list(node["dict"] if "dict" in node else node["ordered"]):
        key, entry = _check_list(key_and_value)
        pairs[_decode(key, tensors, depth + 1)] = _decode(entry, tensors, depth + 1)
    if "dict" in node:
        return pairs
    ordered = OrderedDict(pairs)
    versions = _decode(node["versions"], tensors, depth + 1)
    if versions is not None:
        ordered._metadata = versions  # type: ignore[attr-defined]
    return ordered


def _check_list(node: Any) -> list[Any]:
    """The node; a ``ValueError`` where it is no list."""
    if type(node) is not list:
        raise ValueError("a part of unknown form")
    return node


def make_folder(name: str, path: str | Path) -> Path:
    """The folder that the argument ``name`` gives, made where it is missing; a file in its place
    is refused.
    """
    if not isinstance(path, (str, Path)):
        fail(name, "must be the name of a folder", path)
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(name, f"must be a folder that can be made ({error.strerror})", str(path))
    return Path(path)


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used to its name and ``ASIDE``, so that it is neither read again
    nor lost; an earlier one of that name is replaced. Returns the new path.
    """
    aside = path.with_name(path.name + ASIDE)
    path.replace(aside)
    return aside
