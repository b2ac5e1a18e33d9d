"""The CUDA kernels, in Triton's language.

Plain functions here: ``cuda.kernels`` hands them to Triton and puts the names they use (``tl``, the formulas of
``arithmetic``, each other without the underscore) into their globals. A program of a launch works on one chunk of
``BLOCK`` elements of one tensor, which it finds in a table.
"""

# ruff: noqa: F821
# mypy: disable-error-code="name-defined, no-untyped-def, no-untyped-call"
# fmt: off
from __future__ import annotations


def _select(condition, first, second):
    return tl.where(condition, first, second)


def _magnitude(x):
    return tl.abs(x)


def _root(x):
    return tl.sqrt_rn(x)


def _power(x, exponent):
    return libdevice.pow(x, exponent)


def _find(tensor_of, first_of, sizes, BLOCK: tl.constexpr):
    """Tensor, first element and tensor size of this program's chunk."""
    chunk = tl.program_id(0)
    t = tl.load(tensor_of + chunk)
    start = (chunk - tl.load(first_of + t)).to(tl.int64) * BLOCK
    return t, start, tl.load(sizes + t)


def _address(addresses, row, t, n, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(addresses + row * n + t).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


def _fetch(pointer, offset, size, FULL: tl.constexpr):
    if FULL:
        value = tl.load(pointer + offset)
    else:
        value = tl.load(pointer + offset, mask=offset < size, other=0.0)
    return value.to(tl.float32)


def _put(pointer, offset, size, value, FULL: tl.constexpr):
    if FULL:
        tl.store(pointer + offset, value.to(pointer.dtype.element_ty))
    else:
        tl.store(pointer + offset, value.to(pointer.dtype.element_ty), mask=offset < size)


def _weight(lr, lr_at, LR_AT: tl.constexpr):
    if LR_AT:
        lr = tl.load(lr_at).to(tl.float32)
    return lr


def _guarded(flag_at, GUARD: tl.constexpr):
    """Whether to work at all: false where a gradient was found not to be finite."""
    go = True
    if GUARD:
        go = tl.load(flag_at) != 0
    return go


def _adaptive_part(
    p, g, m, v, offset, size, lr, keep, beta1, rest1, beta2, rest2, alpha, inverse, eps, MODE: tl.constexpr,
    NORMALIZED: tl.constexpr, FULL: tl.constexpr
):
    # All loads come before the first store: the compiler must assume that a store may change what is loaded after it.
    gradient = fetch(g, offset, size, FULL)
    momentum = blend(fetch(m, offset, size, FULL), gradient, beta1, rest1)
    moment = fetch(v, offset, size, FULL)
    x = fetch(p, offset, size, FULL)
    if MODE == 1:
        moment = blend(moment, magnitude(gradient), beta2, rest2)
        tau = moment
    elif MODE == 2:
        moment = blend(moment, gradient * gradient, beta2, rest2)
        tau = root(moment)
    else:
        moment = blend(moment, power(magnitude(gradient), alpha), beta2, rest2)
        tau = power(moment, inverse)
    step = clipped(momentum, tau, eps, 1.0)
    if NORMALIZED:
        step = step / (tau + eps)
    put(m, offset, size, momentum, FULL)
    put(v, offset, size, moment, FULL)
    put(p, offset, size, moved(x, step, lr, keep), FULL)


def _adaptive(
    addresses, tensor_of, first_of, sizes, lr_at, flag_at, n, lr, decay, beta1, rest1, beta2, rest2, alpha, inverse,
    eps, P: tl.constexpr, G: tl.constexpr, MODE: tl.constexpr, NORMALIZED: tl.constexpr, LR_AT: tl.constexpr, GUARD:
    tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    if guarded(flag_at, GUARD):
        t, start, size = find(tensor_of, first_of, sizes, BLOCK)
        p, g = address(addresses, 0, t, n, P, ALIGNED), address(addresses, 1, t, n, G, ALIGNED)
        m, v = address(addresses, 2, t, n, tl.float32, ALIGNED), address(addresses, 3, t, n, tl.float32, ALIGNED)
        lr = weight(lr, lr_at, LR_AT)
        keep = 1.0 - lr * decay
        offset = start + tl.arange(0, BLOCK)
        # A whole chunk needs no mask, and only then are the loads 16 bytes wide.
        if start + BLOCK <= size:
            adaptive_part(
                p, g, m, v, offset, size, lr, keep, beta1, rest1, beta2, rest2, alpha, inverse, eps, MODE, NORMALIZED,
                True
            )
        else:
            adaptive_part(
                p, g, m, v, offset, size, lr, keep, beta1, rest1, beta2, rest2, alpha, inverse, eps, MODE, NORMALIZED,
                False
            )


def _held_part(p, m, g, offset, size, lr, keep, tau, beta, rest, FORM: tl.constexpr, FULL: tl.constexpr):
    gradient = fetch(g, offset, size, FULL)
    x = fetch(p, offset, size, FULL)
    if FORM == 0:
        step = held(gradient, tau)
    elif FORM == 1:
        momentum = blend(fetch(m, offset, size, FULL), gradient, beta, rest)
        put(m, offset, size, momentum, FULL)
        step = held(momentum, tau)
    else:
        step = blend(fetch(m, offset, size, FULL), held(gradient, tau), beta, rest)
        put(m, offset, size, step, FULL)
    put(p, offset, size, moved(x, step, lr, keep), FULL)


def _held(
    addresses, tensor_of, first_of, sizes, lr_at, flag_at, n, lr, decay, tau, beta, rest, sign, P: tl.constexpr, G:
    tl.constexpr, FORM: tl.constexpr, LR_AT: tl.constexpr, GUARD: tl.constexpr, ALIGNED: tl.constexpr, BLOCK:
    tl.constexpr
):
    if guarded(flag_at, GUARD):
        t, start, size = find(tensor_of, first_of, sizes, BLOCK)
        p, g = address(addresses, 0, t, n, P, ALIGNED), address(addresses, 1, t, n, G, ALIGNED)
        # Without momentum there is no third list; any valid address will do, it is not read.
        m = p
        if FORM != 0:
            m = address(addresses, 2, t, n, tl.float32, ALIGNED)
        lr = weight(lr, lr_at, LR_AT)
        keep = 1.0 - lr * decay
        offset = start + tl.arange(0, BLOCK)
        if start + BLOCK <= size:
            held_part(p, m, g, offset, size, sign * lr, keep, tau, beta, rest, FORM, True)
        else:
            held_part(p, m, g, offset, size, sign * lr, keep, tau, beta, rest, FORM, False)


def _sum_part(d, g, y, offset, size, beta, rest, decay, FORM: tl.constexpr, FULL: tl.constexpr):
    if FORM == 0:
        value = fetch(g, offset, size, FULL)
    else:
        gradient = fetch(g, offset, size, FULL)
        if FORM == 2:
            gradient = gradient + decay * fetch(y, offset, size, FULL)
        value = blend(fetch(d, offset, size, FULL), gradient, beta, rest)
        put(d, offset, size, value, FULL)
    wide = value.to(tl.float64)
    return tl.sum(wide * wide, axis=0)


def _sum(
    addresses, tensor_of, first_of, sizes, sums, flag_at, n, beta, rest, decay, P: tl.constexpr, G: tl.constexpr,
    FORM: tl.constexpr, GUARD: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """Sum of squares of a chunk: of g (form 0), of m after averaging g in (1), or g + w·y (2)."""
    if guarded(flag_at, GUARD):
        t, start, size = find(tensor_of, first_of, sizes, BLOCK)
        g = address(addresses, 0, t, n, G, ALIGNED)
        d = g
        y = g
        if FORM != 0:
            d = address(addresses, 1, t, n, tl.float32, ALIGNED)
        if FORM == 2:
            y = address(addresses, 2, t, n, P, ALIGNED)
        offset = start + tl.arange(0, BLOCK)
        if start + BLOCK <= size:
            total = sum_part(d, g, y, offset, size, beta, rest, decay, FORM, True)
        else:
            total = sum_part(d, g, y, offset, size, beta, rest, decay, FORM, False)
        tl.store(sums + tl.program_id(0), total)


def _length(sums, begin, end, WIDE: tl.constexpr):
    total = tl.zeros((WIDE,), dtype=tl.float64)
    at = begin
    while at < end:
        place = at + tl.arange(0, WIDE)
        total += tl.load(sums + place, mask=place < end, other=0.0)
        at += WIDE
    return tl.sqrt(tl.sum(total, axis=0))


def _flag(sums, out, tally, end, WIDE: tl.constexpr):
    """out ← whether the sum of all squares is finite; a sum that is not counts one skipped step."""
    norm = length(sums, 0, end, WIDE)
    finite = (norm - norm) == 0.0
    tl.store(out, finite.to(tl.int32))
    tl.store(tally, tl.load(tally) + (1.0 - finite.to(tl.float64)))


def _factor(
    sums, out, tally, lr_at, flag_at, counter, begin, end, first, last, lr, level, decay, sign, q, base, KIND:
    tl.constexpr, LR_AT: tl.constexpr, GUARD: tl.constexpr, WIDE: tl.constexpr
):
    """From sums of squares to the numbers of the next kernel.

    out = (own norm, norm that counts, factor·lr, sign·factor·lr, 1 − lr·decay, draw, factor), all float64.
    """
    if guarded(flag_at, GUARD):
        own = length(sums, begin, end, WIDE)
        norm = own
        if (first != begin) | (last != end):
            norm = length(sums, first, last, WIDE)
        if LR_AT:
            rate = tl.load(lr_at).to(tl.float64)
        else:
            rate = lr
        if KIND == 0:
            ratio = level / norm
            factor = tl.where(ratio < 1.0, ratio, 1.0)
            factor = tl.where(norm != norm, norm, factor)
            tl.store(tally, tl.load(tally) + (norm > level).to(tl.float64))
        else:
            size = norm + level
            if KIND == 2:
                size = level * norm + q
            factor = tl.where(size == 0.0, 0.0, 1.0 / tl.where(size == 0.0, 1.0, size))
        if KIND == 2:
            k = tl.load(counter) + 1
            tl.store(counter, k)
            tl.store(out + 5, draw(k, base))
        tl.store(out + 0, own)
        tl.store(out + 1, norm)
        tl.store(out + 2, factor * rate)
        tl.store(out + 3, sign * factor * rate)
        tl.store(out + 4, 1.0 - rate * decay)
        tl.store(out + 6, factor)


def _draw(k, base):
    """``rules.schedule.unit_draw`` with its counter in device memory."""
    z = base.to(tl.uint64, bitcast=True) + k.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = (z ^ (z >> 31)) >> 11
    return z.to(tl.int64, bitcast=True).to(tl.float64) * 1.1102230246251565e-16


def _scaled_part(p, d, offset, size, scale, keep, FULL: tl.constexpr):
    value = moved(fetch(p, offset, size, FULL), fetch(d, offset, size, FULL), scale, keep)
    put(p, offset, size, value, FULL)


def _scaled(
    addresses, tensor_of, first_of, sizes, numbers, flag_at, n, P: tl.constexpr, D: tl.constexpr, GUARD: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    if guarded(flag_at, GUARD):
        t, start, size = find(tensor_of, first_of, sizes, BLOCK)
        p, d = address(addresses, 0, t, n, P, ALIGNED), address(addresses, 1, t, n, D, ALIGNED)
        scale, keep = tl.load(numbers + 3).to(tl.float32), tl.load(numbers + 4).to(tl.float32)
        offset = start + tl.arange(0, BLOCK)
        if start + BLOCK <= size:
            scaled_part(p, d, offset, size, scale, keep, True)
        else:
            scaled_part(p, d, offset, size, scale, keep, False)


def _average_part(p, m, g, offset, size, lr, keep, beta, rest, FULL: tl.constexpr):
    momentum = blend(fetch(m, offset, size, FULL), fetch(g, offset, size, FULL), beta, rest)
    x = fetch(p, offset, size, FULL)
    put(m, offset, size, momentum, FULL)
    put(p, offset, size, moved(x, momentum, lr, keep), FULL)


def _average(
    addresses, tensor_of, first_of, sizes, numbers, lr_at, flag_at, n, lr, beta, rest, P: tl.constexpr, G:
    tl.constexpr, LR_AT: tl.constexpr, GUARD: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """m ← β·m + (1−β)·c·g, x ← (1−ηw)·x − η·m with the factor c of the numbers."""
    if guarded(flag_at, GUARD):
        t, start, size = find(tensor_of, first_of, sizes, BLOCK)
        p, m = address(addresses, 0, t, n, P, ALIGNED), address(addresses, 1, t, n, tl.float32, ALIGNED)
        g = address(addresses, 2, t, n, G, ALIGNED)
        lr, keep = weight(lr, lr_at, LR_AT), tl.load(numbers + 4).to(tl.float32)
        part = rest * tl.load(numbers + 6).to(tl.float32)
        offset = start + tl.arange(0, BLOCK)
        if start + BLOCK <= size:
            average_part(p, m, g, offset, size, lr, keep, beta, part, True)
        else:
            average_part(p, m, g, offset, size, lr, keep, beta, part, False)


def _interpolate_part(p, x, m, offset, size, eta, part, FULL: tl.constexpr):
    step = eta * fetch(m, offset, size, FULL)
    at = fetch(x, offset, size, FULL)
    put(p, offset, size, at - part * step, FULL)
    put(x, offset, size, at - step, FULL)


def _interpolate(
    addresses, tensor_of, first_of, sizes, numbers, flag_at, n, P: tl.constexpr, GUARD: tl.constexpr, ALIGNED:
    tl.constexpr, BLOCK: tl.constexpr
):
    if guarded(flag_at, GUARD):
        t, start, size = find(tensor_of, first_of, sizes, BLOCK)
        p, x = address(addresses, 0, t, n, P, ALIGNED), address(addresses, 1, t, n, tl.float32, ALIGNED)
        m = address(addresses, 2, t, n, tl.float32, ALIGNED)
        eta, part = tl.load(numbers + 2).to(tl.float32), tl.load(numbers + 5).to(tl.float32)
        offset = start + tl.arange(0, BLOCK)
        if start + BLOCK <= size:
            interpolate_part(p, x, m, offset, size, eta, part, True)
        else:
            interpolate_part(p, x, m, offset, size, eta, part, False)


HELPERS = (
    *(_select, _magnitude, _root, _power),
    *(_find, _address, _fetch, _put, _weight, _guarded, _length, _draw),
    *(_adaptive_part, _held_part, _sum_part, _scaled_part, _average_part, _interpolate_part),
)
KERNELS = (_adaptive, _held, _sum, _flag, _factor, _scaled, _average, _interpolate)
