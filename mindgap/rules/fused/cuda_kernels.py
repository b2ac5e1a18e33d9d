"""The CUDA kernels, in Triton's language.

Plain functions here: ``cuda.kernels`` hands them to Triton and puts the names they use (``tl``, the
formulas of ``arithmetic``, each other without the underscore) into their globals. One walker serves
all rules: a program works on one chunk of ``BLOCK`` elements of one tensor, which it finds in a
table, and ``rule`` is the rule's arithmetic. The other kernels have a single program: they turn
sums into the numbers w of the next walk.
"""

# ruff: noqa: F821
# mypy: disable-error-code="name-defined, no-untyped-def, no-untyped-call"
from __future__ import annotations


def _select(condition, first, second):
    """``first`` where the condition holds, else ``second``."""
    return tl.where(condition, first, second)


def _magnitude(x):
    """|x|."""
    return tl.abs(x)


def _root(x):
    """√x, rounded correctly."""
    return tl.sqrt_rn(x)


def _power(x, exponent):
    """x to a power, for x ≥ 0."""
    return libdevice.pow(x, exponent)


def _address(addresses, row, t, columns, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """A pointer to tensor t of a list, with elements of type DTYPE.

    ``addresses`` is the table of addresses with one row per list and ``columns`` columns, one per
    tensor. ALIGNED promises the compiler that addresses are multiples of 16 bytes.
    """
    pointer = tl.load(addresses + row * columns + t).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


def _fetch(pointer, offset, size, FULL: tl.constexpr):
    """The elements at the offsets as float32; 0 where an offset is not below ``size``, the tensor's
    end (FULL promises that there is none).
    """
    if FULL:
        value = tl.load(pointer + offset)
    else:
        value = tl.load(pointer + offset, mask=offset < size, other=0.0)
    return value.to(tl.float32)


def _put(pointer, offset, size, value, FULL: tl.constexpr):
    """Store values at the offsets, in the dtype of the memory; nothing where an offset is not below
    ``size``, the tensor's end (FULL promises that there is none).
    """
    if FULL:
        tl.store(pointer + offset, value.to(pointer.dtype.element_ty))
    else:
        tl.store(pointer + offset, value.to(pointer.dtype.element_ty), mask=offset < size)


def _guarded(flag_at, GUARD: tl.constexpr):
    """Whether to work at all: false where the step is left out, which the memory at ``flag_at``
    says by a 0. Without GUARD it is not read, and the step is certain.
    """
    step_is_made = True
    if GUARD:
        step_is_made = tl.load(flag_at) != 0
    return step_is_made


def _part(
    p0,
    p1,
    p2,
    p3,
    p4,
    offset,
    size,
    w,
    n,
    LISTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SUMS: tl.constexpr,
    FULL: tl.constexpr,
):
    """Apply the rule to one chunk of a tensor, in place. Returns the sum of squares of what the
    chunk then holds in the first list, in float64, if SUMS asks for it, else 0.

    p0 to p4 point to the tensor in each of the LISTS lists. Of these OUTPUTS are written: the
    first, then those behind the second. ``offset`` has the places of the chunk's elements in the
    tensor, and ``size`` the tensor's number of elements; FULL promises that no place lies behind
    its end. w and n are the rule's numbers.

    All loads come before the first store: a store might change what is loaded after it.
    """
    x = fetch(p0, offset, size, FULL)
    # ``first`` to ``third`` are the old entries of the lists behind the second, a to c the new.
    if LISTS == 2:
        x = rule(x, fetch(p1, offset, size, FULL), w, n)
    elif LISTS == 3:
        if OUTPUTS == 1:
            x = rule(x, fetch(p1, offset, size, FULL), fetch(p2, offset, size, FULL), w, n)
        else:
            x, a = rule(x, fetch(p1, offset, size, FULL), fetch(p2, offset, size, FULL), w, n)
            put(p2, offset, size, a, FULL)
    elif LISTS == 4:
        first, second = fetch(p2, offset, size, FULL), fetch(p3, offset, size, FULL)
        x, a, b = rule(x, fetch(p1, offset, size, FULL), first, second, w, n)
        put(p2, offset, size, a, FULL)
        put(p3, offset, size, b, FULL)
    elif LISTS == 5:
        first, second = fetch(p2, offset, size, FULL), fetch(p3, offset, size, FULL)
        third = fetch(p4, offset, size, FULL)
        x, a, b, c = rule(x, fetch(p1, offset, size, FULL), first, second, third, w, n)
        put(p2, offset, size, a, FULL)
        put(p3, offset, size, b, FULL)
        put(p4, offset, size, c, FULL)
    if OUTPUTS > 0:
        put(p0, offset, size, x, FULL)
    total = 0.0
    if SUMS:
        exact = x.to(tl.float64)
        if not FULL:
            exact = tl.where(offset < size, exact, 0.0)
        total = tl.sum(exact * exact, axis=0)
    return total


def _walk(
    addresses,
    tensor_of_chunk,
    first_chunk,
    sizes,
    factors,
    lr_at,
    flag_at,
    sums,
    count,
    lr,
    decay,
    n2,
    n3,
    n4,
    n5,
    n6,
    n7,
    n8,
    n9,
    n10,
    D0: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    LISTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SUMS: tl.constexpr,
    EACH: tl.constexpr,
    LR_AT: tl.constexpr,
    GUARD: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Apply the rule to the chunk whose number is that of this program, in place.

    Tables: ``addresses`` of the tensors (one row per list), the tensor of each chunk, the first
    chunk and the size of each tensor. Memory: ``factors`` w of the rule (one row of four for all
    tensors, or with EACH one per tensor), the step size ``lr_at`` (with LR_AT), the flag that is 0
    where the step is left out (with GUARD), and the ``sums`` of squares by chunk (written with
    SUMS). Numbers: ``count`` tensors, the step size ``lr`` (without LR_AT) and weight decay, and n2
    to n10 of the rule. D0 to D2: dtypes of the first three lists; further ones are float32.
    """
    if guarded(flag_at, GUARD):
        chunk = tl.program_id(0)
        t = tl.load(tensor_of_chunk + chunk)
        start = (chunk - tl.load(first_chunk + t)).to(tl.int64) * BLOCK
        size = tl.load(sizes + t)
        if LR_AT:
            lr = tl.load(lr_at).to(tl.float32)
        row = factors
        if EACH:
            row = factors + t * 4
        w = (
            tl.load(row).to(tl.float32),
            tl.load(row + 1).to(tl.float32),
            tl.load(row + 2).to(tl.float32),
            tl.load(row + 3).to(tl.float32),
        )
        n = (lr, 1.0 - lr * decay, n2, n3, n4, n5, n6, n7, n8, n9, n10)
        p0 = address(addresses, 0, t, count, D0, ALIGNED)
        # A rule with fewer lists gets valid addresses that are not read.
        p1 = p0
        p2 = p0
        p3 = p0
        p4 = p0
        if LISTS > 1:
            p1 = address(addresses, 1, t, count, D1, ALIGNED)
        if LISTS > 2:
            p2 = address(addresses, 2, t, count, D2, ALIGNED)
        if LISTS > 3:
            p3 = address(addresses, 3, t, count, tl.float32, ALIGNED)
        if LISTS > 4:
            p4 = address(addresses, 4, t, count, tl.float32, ALIGNED)
        offset = start + tl.arange(0, BLOCK)
        # A whole chunk needs no mask, and only then are the loads 16 bytes wide.
        if start + BLOCK <= size:
            total = part(p0, p1, p2, p3, p4, offset, size, w, n, LISTS, OUTPUTS, SUMS, True)
            if SUMS:
                tl.store(sums + chunk, total)
        else:
            total = part(p0, p1, p2, p3, p4, offset, size, w, n, LISTS, OUTPUTS, SUMS, False)
            if SUMS:
                tl.store(sums + chunk, total)


def _length(sums, begin, end, WIDE: tl.constexpr):
    """The norm √(Σ sums[begin:end]) in float64, WIDE sums at a time."""
    total = tl.zeros((WIDE,), dtype=tl.float64)
    start = begin
    while start < end:
        index = start + tl.arange(0, WIDE)
        total += tl.load(sums + index, mask=index < end, other=0.0)
        start += WIDE
    return tl.sqrt(tl.sum(total, axis=0))


def _places(window, values, WINDOW: tl.constexpr):
    """How many positive norms of a window are below each of its ``values``, and how many are not
    above it. No sort: these counts tell which value has a rank (``at_rank``).
    """
    below = tl.zeros((WINDOW,), dtype=tl.float64)
    up_to = tl.zeros((WINDOW,), dtype=tl.float64)
    # Every value with 16 others at a time.
    for start in range(0, WINDOW, 16):
        others = tl.load(window + start + tl.arange(0, 16))[None, :]
        below += tl.sum(((others > 0.0) & (others < values[:, None])).to(tl.float64), axis=1)
        up_to += tl.sum(((others > 0.0) & (others <= values[:, None])).to(tl.float64), axis=1)
    return below, up_to


def _at_rank(values, below, up_to, rank):
    """The positive value of a rank, counted from 1; 0 where there is none. ``below`` and ``up_to``
    are those of ``places``.
    """
    return tl.max(tl.where((values > 0.0) & (below < rank) & (up_to >= rank), values, 0.0), axis=0)


def _ranked(window, values, count, q, WINDOW: tl.constexpr):
    """The q-quantile of the window: of its positive values the one of rank ⌈q·(count+1)⌉, at most
    the largest; 0 where there is none.

    ``window`` is the memory of WINDOW norms, ``values`` are these norms loaded, and ``count`` is
    the number of positive ones.
    """
    below, up_to = places(window, values, WINDOW)
    return at_rank(values, below, up_to, tl.minimum(tl.ceil(q * (count + 1.0)), count))


def _push(window, norm, room, WINDOW: tl.constexpr):
    """Forget the oldest norm of a window and add one, as 0 where it is 0 or not finite, in place.
    ``room`` is WINDOW, or 0 to write nothing.
    """
    index = tl.arange(0, WINDOW)
    values = tl.load(window + index + 1, mask=index < WINDOW - 1, other=0.0)
    newest = tl.where((norm - norm) == 0.0, norm, 0.0)
    values = tl.where(index == WINDOW - 1, newest, values)
    tl.debug_barrier()  # all threads have loaded before one stores
    tl.store(window + index, values, mask=index < room)


def _remember(history, norm, go, WINDOW: tl.constexpr):
    """Write the norm of a step that is made (``go``) into the ring ``history`` for the report. The
    entry behind the ring's WINDOW ones counts the norms and grows by 1.
    """
    seen = tl.load(history + WINDOW)
    tl.store(history + (seen.to(tl.int64) % WINDOW), norm, mask=go)
    tl.store(history + WINDOW, seen + 1.0, mask=go)


def _gather(
    addresses,
    tensor_of_entry,
    offset_of_entry,
    place_of_entry,
    entries,
    count,
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy ``count`` gradient entries to their places in ``entries``, as float32. The tables say of
    each its tensor in ``addresses``, its offset in that tensor and its place.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    tensor = tl.load(tensor_of_entry + index, mask=inside, other=0)
    offset = tl.load(offset_of_entry + index, mask=inside, other=0)
    place = tl.load(place_of_entry + index, mask=inside, other=0)
    pointer = tl.load(addresses + tensor).to(tl.pointer_type(DTYPE))
    value = tl.load(pointer + offset, mask=inside, other=0.0)
    tl.store(entries + place, value.to(tl.float32), mask=inside)


def _judged(
    evidence_at,
    sides,
    entries,
    window,
    values,
    count,
    norm,
    go,
    entry_count,
    rest2,
    log2,
    WIDE: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """``mindgap.optim.sides.judge_``, whose constants are the numbers here: the factor on the
    gradients and whether the rule is on, for the norm of all gradients. The window, whose norms are
    ``values`` with ``count`` positive ones, does not hold this norm yet.

    Writes the numbers ``evidence_at`` and the direction ``sides`` where the norm is judged (``go``;
    else nothing). ``entries`` are ``entry_count`` entries of the gradients, rest2 is 1 − β₂ and
    log2 its logarithm, log β₂.
    """
    # W; steps since the last judged gradient; the mean of |r| before its bias correction, and how
    # many were judged; S, and how many norms it has seen; R.
    evidence = tl.load(evidence_at)
    since = tl.load(evidence_at + 1) + 1.0
    clarity = tl.load(evidence_at + 2)
    judged_before = tl.load(evidence_at + 3)
    size = tl.load(evidence_at + 4)
    seen = tl.load(evidence_at + 5)
    ratio = tl.load(evidence_at + 6)
    below, up_to = places(window, values, WINDOW)
    # The lower median of the norms, and whether this one is large: ``LARGE`` = 4, ``KNOWN`` = 10.
    middle = at_rank(values, below, up_to, tl.floor((count - 1.0) / 2.0) + 1.0)
    middle = tl.where(count > 0.0, middle, float("inf"))
    finite = (norm - norm) == 0.0
    large = go & finite & (norm > 4.0 * middle) & (count >= 10.0)
    # Products of the direction and what is remembered; nothing is read where nothing is large.
    end = tl.where(large, entry_count, 0)
    squares = tl.zeros((WIDE,), dtype=tl.float64)
    products = tl.zeros((WIDE,), dtype=tl.float64)
    memory_squares = tl.zeros((WIDE,), dtype=tl.float64)
    start = 0
    while start < end:
        index = start + tl.arange(0, WIDE)
        inside = index < end
        entry = tl.load(entries + index, mask=inside, other=0.0).to(tl.float64) / norm
        remembered = tl.load(sides + index, mask=inside, other=0.0)
        squares += tl.where(inside, entry * entry, 0.0)
        products += tl.where(inside, entry * remembered, 0.0)
        memory_squares += remembered * remembered
        start += WIDE
    length = tl.sqrt(tl.sum(squares, axis=0))
    both = length * tl.sqrt(tl.sum(memory_squares, axis=0))
    # The cosine of the direction and L; then L ← 0.97·L + direction of length 1.
    r = tl.where(both > 0.0, tl.sum(products, axis=0) / both, 0.0)
    share_of_direction = tl.where(length > 0.0, 1.0 / length, 0.0)
    start = 0
    while start < end:
        index = start + tl.arange(0, WIDE)
        inside = index < end
        entry = tl.load(entries + index, mask=inside, other=0.0).to(tl.float64) / norm
        remembered = tl.load(sides + index, mask=inside, other=0.0)
        tl.store(sides + index, 0.97 * remembered + share_of_direction * entry, mask=inside)
        start += WIDE
    is_judged = large & (r != 0.0)
    clearness = tl.where(r < 0.0, -r, r)
    judged_now = judged_before + is_judged.to(tl.float64)
    clarity = tl.where(is_judged, 0.97 * clarity + 0.03 * clearness, clarity)
    usual = clarity / (1.0 - tl.exp(judged_now * -0.030459207484708574))  # log 0.97
    clearness = clearness / usual
    clearness = tl.where(clearness < 3.0, clearness, 3.0)
    # ``AGREES`` = log 1.9 for a gradient that agrees, ``DIFFERS`` = log 0.1 for one that does not;
    # W stays between ``LEAST`` = −3 and ``MOST`` = 6.
    found = clearness * tl.where(r > 0.0, 0.6418538861723947, -2.3025850929940455)
    moved = evidence + found
    moved = tl.where(moved < -3.0, -3.0, tl.where(moved > 6.0, 6.0, moved))
    evidence = tl.where(is_judged, moved, evidence)
    since = tl.where(is_judged, 0.0, since)
    # ``STAY`` = 256 steps, ``NOISE`` = 2.5. A large gradient that passes is handed on with at most
    # ``GROWTH`` = 2 times R medians, and R is at least ``LARGE/GROWTH`` = 2.
    on = go & (since <= 256.0) & (evidence <= 2.5)
    passed = large & (on == 0)
    most = tl.where(is_judged, 2.0 * ratio, 4.0) * middle
    handed_on = tl.where(passed & (norm > most), most, norm)
    least_ratio = tl.maximum(0.97 * ratio, 2.0)
    ratio = tl.where(passed, tl.maximum(least_ratio, handed_on / middle), ratio)
    # The factor where the rule is on, from the 0.25 quantile of the norms.
    place = 0.25 * (count - 1.0)
    whole_place = tl.floor(place)
    low = at_rank(values, below, up_to, whole_place + 1.0)
    high = at_rank(values, below, up_to, tl.minimum(whole_place + 1.0, count - 1.0) + 1.0)
    share = (low + (place - whole_place) * (high - low)) / norm
    share = tl.where(share > 1.0, 1.0, share)
    factor = size / norm * share * share
    factor = tl.where(factor > 1.2676506002282294e30, 1.2676506002282294e30, factor)  # 2^100
    factor = tl.where((norm == 0.0) | (count == 0.0), 1.0, factor)
    factor = tl.where(on, factor, tl.where(passed, handed_on / norm, 1.0))
    seen = seen + finite.to(tl.float64)
    weight = rest2 / (1.0 - tl.exp(tl.maximum(seen, 1.0) * log2))
    followed = tl.sqrt((1.0 - weight) * size * size + weight * handed_on * handed_on)
    size = tl.where(finite & (on == 0), followed, size)
    tl.store(evidence_at, evidence, mask=go)
    tl.store(evidence_at + 1, since, mask=go)
    tl.store(evidence_at + 2, clarity, mask=go)
    tl.store(evidence_at + 3, judged_now, mask=go)
    tl.store(evidence_at + 4, size, mask=go)
    tl.store(evidence_at + 5, seen, mask=go)
    tl.store(evidence_at + 6, ratio, mask=go)
    return factor, on


def _policy(
    sums,
    factors,
    stats,
    window,
    history,
    spikes,
    flag_at,
    counter,
    evidence,
    sides,
    entries,
    end,
    clip,
    eps,
    q,
    least,
    entry_count,
    rest2,
    log2,
    NONFINITE: tl.constexpr,
    CLIP: tl.constexpr,
    SPIKES: tl.constexpr,
    COUNT: tl.constexpr,
    WIDE: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Turn the norm of all gradients, √(Σ sums[0:end]), into the factor on them and the decision to
    step.

    Writes: factors[0], the factor on the gradients; stats = (norm, steps left out, clipped steps,
    spikes), of which the last three grow; the flag, 1 where the step is made; the window of last
    norms, which the norm enters (with CLIP 2 or 4, or SPIKES); the history of norms for the report
    (with CLIP); a row (step, norm, low, limit) in the ring ``spikes``; ``counter``, the step
    number, which grows by 1 (with COUNT). CLIP: 0 for none, 1 for the number ``clip``, 2 for the
    quantile q of the window, 3 to divide by the norm, 4 for what ``judged`` says of the gradients'
    ``entries``; it writes ``evidence``, ``sides`` and factors[3], whether its rule is on. SPIKES: 0
    for none, 1 to clip them, 2 to skip them; a spike needs ``least`` norms before it, and is not
    judged. NONFINITE: a norm that is not finite leaves the step out.
    """
    norm = length(sums, 0, end, WIDE)
    # True for every norm, NaN too, but as a value of the device; norm − norm is 0 if it is finite.
    go = (norm >= 0.0) | (norm != norm)
    if NONFINITE:
        go = (norm - norm) == 0.0
    # 1 and ``clip`` in float64, whatever type they come in (``where`` with two equal values).
    scale = tl.where(norm == norm, 1.0, 1.0).to(tl.float64)
    k = tl.load(counter) + 1
    if COUNT:
        tl.store(counter, k)
    threshold = tl.where(norm == norm, clip, clip).to(tl.float64)
    is_judged = go
    if (CLIP == 2) | (CLIP == 4) | (SPIKES > 0):
        values = tl.load(window + tl.arange(0, WINDOW))
        count = tl.sum((values > 0.0).to(tl.float64), axis=0)
        if (CLIP == 2) | (SPIKES > 0):
            high = tl.where(count > 0.0, ranked(window, values, count, q, WINDOW), float("inf"))
        if CLIP == 2:
            threshold = high
        if SPIKES > 0:
            # The (1 − q)-quantile. q is a float32, so a little less than 1: a rank that is whole
            # must not be rounded up to the next one.
            low = ranked(window, values, count, 0.999999 - q, WINDOW)
            ratio = high / low
            ratio = tl.where(ratio > 2.0, ratio, 2.0)
            limit = tl.where(count >= least, high * ratio * ratio, float("inf"))
            spike = go & (norm > limit)
            spikes_before = tl.load(stats + 3)
            # A ring of 64 rows (``cuda_rules.SPIKES``) of 4 numbers.
            entry = spikes + (spikes_before.to(tl.int64) % 64) * 4
            tl.store(entry, k.to(tl.float64), mask=spike)
            tl.store(entry + 1, norm, mask=spike)
            tl.store(entry + 2, low, mask=spike)
            tl.store(entry + 3, limit, mask=spike)
            tl.store(stats + 3, spikes_before + spike.to(tl.float64))
            is_judged = go & ((norm <= limit) | (norm != norm))
        if CLIP == 4:
            factor, on = judged(
                evidence,
                sides,
                entries,
                window,
                values,
                count,
                norm,
                is_judged,
                entry_count,
                rest2,
                log2,
                2048,  # entries at once: more need more registers than there are
                WINDOW,
            )
            tl.store(factors + 3, on.to(tl.float64))
        push(window, norm, tl.where(go, WINDOW, 0), WINDOW)
        if SPIKES == 1:
            shrink = high / norm
            scale = tl.where(spike, tl.where(shrink < 1.0, shrink, 1.0), scale)
        if SPIKES == 2:
            go = go & ((norm <= limit) | (norm != norm))
    if CLIP == 4:
        scale = tl.where(is_judged, factor, scale)
        tl.store(stats + 2, tl.load(stats + 2) + (go & (scale < 1.0)).to(tl.float64))
        remember(history, norm, go, WINDOW)
    elif CLIP == 3:
        scale = tl.where(norm == 0.0, 1.0, 1.0 / norm)
        remember(history, norm, go, WINDOW)
    elif CLIP > 0:
        ratio = threshold / (norm + eps)
        scale = tl.where(ratio < scale, ratio, scale)
        scale = tl.where(ratio != ratio, ratio, scale)  # NaN stays NaN
        tl.store(stats + 2, tl.load(stats + 2) + (go & (norm > threshold)).to(tl.float64))
        remember(history, norm, go, WINDOW)
    tl.store(factors, scale)
    tl.store(stats, norm, mask=go)
    tl.store(stats + 1, tl.load(stats + 1) + (1.0 - go.to(tl.float64)))
    tl.store(flag_at, go.to(tl.int32))


def _corrections(
    policy_factors,
    factors,
    steps,
    flag_at,
    count,
    log1,
    log2,
    rate,
    EARLIER: tl.constexpr,
    EVENTS: tl.constexpr,
    BOUNDED: tl.constexpr,
    GUARD: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Write per tensor the factors (c, 1/(1−β₁^k), 1/(1−β₂^k), whether k = 1), where k counts the
    tensor's gradients and c = policy_factors[0] is the policy's factor.

    Adds one to each of the ``count`` entries of ``steps``, which becomes k, and writes ``factors``,
    four per tensor. log1 and log2 are log β₁ and log β₂. EARLIER: with β₂^(k−1), or 1 at k = 1.
    EVENTS: the fourth is the weight max{rate, 1/k}. BOUNDED: it is 1/(1−βₐ^k) where the policy's
    rule is on (policy_factors[3]), else 0, and ``rate`` is log βₐ. GUARD: nothing is done where the
    memory at ``flag_at`` is 0.
    """
    if guarded(flag_at, GUARD):
        scale = tl.load(policy_factors)
        start = 0
        while start < count:
            index = start + tl.arange(0, WIDE)
            inside = index < count
            k = tl.load(steps + index, mask=inside, other=1.0) + 1.0
            tl.store(steps + index, k, mask=inside)
            first = 1.0 - tl.exp(k * log1)
            second = 1.0 - tl.exp(k * log2)
            if EARLIER:
                second = tl.where(k == 1.0, 1.0, 1.0 - tl.exp((k - 1.0) * log2))
            # ``+ 0.0 * k`` spreads a single number over the block.
            tl.store(factors + index * 4, scale + 0.0 * k, mask=inside)
            tl.store(factors + index * 4 + 1, 1.0 / first, mask=inside)
            tl.store(factors + index * 4 + 2, 1.0 / second, mask=inside)
            last = tl.where(k == 1.0, 1.0, 0.0).to(tl.float64)
            if EVENTS:
                last = tl.where(k * rate > 1.0, rate + 0.0 * k, 1.0 / k)
            if BOUNDED:
                is_on = tl.load(policy_factors + 3) + 0.0 * k
                last = tl.where(is_on > 0.0, 1.0 / (1.0 - tl.exp(k * rate)), 0.0)
            tl.store(factors + index * 4 + 3, last, mask=inside)
            start += WIDE


def _norm_factor(
    sums,
    policy_factors,
    out,
    factors,
    rule_clips,
    history,
    window,
    lr_at,
    flag_at,
    counter,
    begin,
    end,
    first,
    last,
    lr,
    level,
    sign,
    q,
    base,
    KIND: tl.constexpr,
    LATE: tl.constexpr,
    RATED: tl.constexpr,
    WINDOWED: tl.constexpr,
    REMEMBER: tl.constexpr,
    COUNT: tl.constexpr,
    LR_AT: tl.constexpr,
    GUARD: tl.constexpr,
    WIDE: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Turn the sums of squares of a rule's direction into the factor on that direction.

    Writes: factors = (``sign`` times factor, random draw); out = (norm of the sums begin to end,
    norm of the sums first to last, factor), all float64. Also written: ``rule_clips``, plus 1 where
    it clips; the window, which n (below) enters (WINDOWED); the history, which the second norm
    enters for the report (REMEMBER); ``counter``, the step number, plus 1 (COUNT).

    The factor follows from n, the second norm. LATE: the sums are of gradients that the policy's
    factor has yet to scale; n and the factor then include it. KIND: 0 clips with min{τ/n, 1}, 1
    normalises with 1/(n + level), 2 interpolates with 1/(level·n + q). τ is the quantile q of the
    window (WINDOWED), else ``level``. RATED: the factor includes the step size, which is ``lr`` or
    lies in memory (LR_AT). COUNT: draw the number of this step from the sequence that begins at
    ``base``. GUARD: nothing but counter and draw where the flag is 0.
    """
    if COUNT:
        k = tl.load(counter) + 1
        tl.store(counter, k)
        tl.store(factors + 1, draw(k, base))
    if guarded(flag_at, GUARD):
        own = length(sums, begin, end, WIDE)
        norm = own
        if (first != begin) | (last != end):
            norm = length(sums, first, last, WIDE)
        if REMEMBER:
            remember(history, norm, (norm >= 0.0) | (norm != norm), WINDOW)
        late = 1.0
        if LATE:
            late = tl.load(policy_factors)
        size = late * norm
        if KIND == 0:
            tau = tl.where(norm == norm, level, level).to(tl.float64)
            if WINDOWED:
                values = tl.load(window + tl.arange(0, WINDOW))
                count = tl.sum((values > 0.0).to(tl.float64), axis=0)
                tau = tl.where(count > 0.0, ranked(window, values, count, q, WINDOW), float("inf"))
                push(window, size, WINDOW, WINDOW)
            ratio = tau / size
            factor = tl.where(ratio < 1.0, ratio, 1.0)
            factor = tl.where(ratio != ratio, ratio, factor)  # NaN, and ∞/∞, as torch
            tl.store(rule_clips, tl.load(rule_clips) + (size > tau).to(tl.float64))
        else:
            divisor = size + level
            if KIND == 2:
                divisor = level * size + q
            factor = tl.where(divisor == 0.0, 0.0, 1.0 / tl.where(divisor == 0.0, 1.0, divisor))
        factor = factor * late
        if RATED:
            if LR_AT:
                factor = factor * tl.load(lr_at).to(tl.float64)
            else:
                factor = factor * lr
        tl.store(out, own)
        tl.store(out + 1, norm)
        tl.store(out + 2, factor)
        tl.store(factors, factor * sign)


def _draw(k, base):
    """The k-th number, uniform on [0, 1), of the sequence that begins at ``base``:
    ``rules.schedule.unit_draw`` (SplitMix64) with a counter k in device memory.
    """
    z = base.to(tl.uint64, bitcast=True) + k.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = (z ^ (z >> 31)) >> 11
    # 53 random bits, times 2^−53.
    return z.to(tl.int64, bitcast=True).to(tl.float64) * 1.1102230246251565e-16


#: What ``arithmetic`` takes from here, what kernels call, and the kernels besides the walker: with
#: a single program all but ``gather``.
PRIMITIVES = (_select, _magnitude, _root, _power)
HELPERS = (
    _address,
    _fetch,
    _put,
    _guarded,
    _length,
    _places,
    _at_rank,
    _ranked,
    _push,
    _remember,
    _draw,
    _judged,
)
SINGLES = (_policy, _corrections, _norm_factor, _gather)
