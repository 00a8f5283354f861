"""Pack the values of a forecast into few bytes, exactly: what is unpacked is digit for digit what was packed. Pure.

Layout: a version byte, a flag byte, the number of values, then (all numbers as varints) exponent, factor and width, and
a body that is deflated where that helps: a bitmap of what is missing, the exponents where they differ, and the values
as whole multiples of ``factor x 10^exponent``, each less the one before, byte plane by byte plane. The common factor
takes out a conversion of units: 812.4 lb/MWh is 368.498441388 g/kWh, and is kept as 4 digits and not as 12.
Values that no 64-bit whole number can hold are kept as text (version 2).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext

import numpy as np
import numpy.typing as npt

_WHOLE, _TEXT = 1, 2
_HAS_GAPS, _IS_MIXED, _IS_DEFLATED = 1, 2, 4

#: Enough digits for any 64-bit whole number, so that shifting its point never rounds.
_CONTEXT = Context(prec=40)

#: Whole numbers below this are exact as floats, and so are the powers of ten below 10^23.
_EXACT_FLOAT = 2**53

IntArray = npt.NDArray[np.int64]


def pack(values: Sequence[Decimal | None]) -> bytes:
    """Pack values; None stays missing. Raises ValueError for one that is negative or no number."""
    for value in values:
        if value is not None and (not value.is_finite() or value.is_signed()):
            raise ValueError(f"{value} is not an intensity")
    known = [value for value in values if value is not None]
    exponents = [_exponent(value) for value in known]
    lowest = min(exponents, default=0)
    offsets = [exponent - lowest for exponent in exponents]
    wholes = [_whole(value, lowest) for value in known]
    factor = math.gcd(*wholes) or 1
    if max(offsets, default=0) > 255 or factor >= 2**63 or max(wholes, default=0) // factor >= 2**62:
        return _pack_text(values)
    flags = (_HAS_GAPS if len(known) < len(values) else 0) | (_IS_MIXED if any(offsets) else 0)
    steps = np.diff(np.array([whole // factor for whole in wholes], dtype=np.int64), prepend=0)
    # Zigzag: small steps up and down are small numbers, so that the high planes are all zeros.
    numbers = ((steps << 1) ^ (steps >> 63)).view(np.uint64)
    width = max(1, (int(numbers.max(initial=0)).bit_length() + 7) // 8)
    planes = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()
    body = planes
    if flags & _IS_MIXED:
        body = bytes(offsets) + body
    if flags & _HAS_GAPS:
        body = np.packbits([value is not None for value in values]).tobytes() + body
    deflated = _deflate(body)
    if len(deflated) < len(body):
        flags, body = flags | _IS_DEFLATED, deflated
    numbers_of_head = (len(values), _zigzag(lowest), factor, width)
    return bytes((_WHOLE, flags)) + b"".join(map(_varint, numbers_of_head)) + body


def unpack(packed: bytes, start: int = 0, stop: int | None = None) -> list[Decimal | None]:
    """Return the values, or those from ``start`` up to ``stop``. Raises ValueError for bytes of another version."""
    if packed[:1] == bytes((_TEXT,)):
        return _unpack_text(packed)[start:stop]
    there, exponents, wholes, lowest = _read(packed)
    if exponents is not None:
        numbers = wholes.tolist()
        known = [
            _decimal(number // 10**offset, lowest + offset)
            for number, offset in zip(numbers, exponents.tolist(), strict=True)
        ]
        found: list[Decimal | None] = [None] * len(there)
        for place, value in zip(np.flatnonzero(there).tolist(), known, strict=True):
            found[place] = value
        return found[start:stop]
    chosen = there[start:stop]
    before = int(np.count_nonzero(there[:start]))
    numbers = wholes[before : before + int(np.count_nonzero(chosen))].tolist()
    values = _decimals(numbers, lowest)
    if len(values) == len(chosen):
        return list(values)
    following = iter(values)
    return [next(following) if is_there else None for is_there in chosen.tolist()]


def unpack_floats(packed: bytes) -> npt.NDArray[np.float64]:
    """Return the values as floats, NaN where missing: what ``float`` makes of each ``unpack``ed one, much faster."""
    if packed[:1] == bytes((_TEXT,)):
        return _floats(_unpack_text(packed))
    there, _, wholes, lowest = _read(packed)
    if int(wholes.max(initial=0)) >= _EXACT_FLOAT or not -22 <= lowest <= 0:
        return _floats(unpack(packed))
    found = np.full(len(there), np.nan)
    # Both exact, hence rounded once, as a decimal's own conversion is.
    found[there] = wholes.astype(np.float64) / 10.0**-lowest
    return found


def _read(packed: bytes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8] | None, IntArray, int]:
    """Return what is there, exponents above the lowest where they differ, whole numbers, and the lowest exponent."""
    if packed[:1] != bytes((_WHOLE,)):
        raise ValueError(f"values packed as version {packed[0] if packed else 'none'} are not known")
    flags, at = packed[1], 2
    head: list[int] = []
    for _ in range(4):
        number, at = _read_varint(packed, at)
        head.append(number)
    count, lowest, factor, width = head[0], _unzigzag(head[1]), head[2], head[3]
    body = zlib.decompress(packed[at:], -zlib.MAX_WBITS) if flags & _IS_DEFLATED else packed[at:]
    there = np.ones(count, dtype=np.bool_)
    if flags & _HAS_GAPS:
        size = (count + 7) // 8
        there = np.unpackbits(np.frombuffer(body, np.uint8, size), count=count).astype(np.bool_)
        body = body[size:]
    known = int(np.count_nonzero(there))
    exponents = None
    if flags & _IS_MIXED:
        exponents = np.frombuffer(body, np.uint8, known)
        body = body[known:]
    planes = np.zeros((known, 8), dtype=np.uint8)
    planes[:, :width] = np.frombuffer(body, np.uint8, known * width).reshape(width, known).T
    numbers = planes.view("<u8").reshape(known).astype(np.uint64)
    steps = (numbers >> np.uint64(1)).astype(np.int64) ^ -(numbers & np.uint64(1)).astype(np.int64)
    wholes = np.cumsum(steps)
    if factor > 1:
        if len(wholes) and int(wholes.max()) * factor >= 2**63:
            wholes = wholes.astype(object)
        wholes = wholes * factor
    return there, exponents, wholes, lowest


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # finite
    return exponent


def _whole(value: Decimal, lowest: int) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator * 10**-lowest // denominator if lowest <= 0 else numerator // (denominator * 10**lowest)


def _decimal(number: int, exponent: int) -> Decimal:
    return Decimal(number).scaleb(exponent, _CONTEXT)


def _decimals(numbers: Sequence[int], exponent: int) -> list[Decimal]:
    with localcontext(_CONTEXT):
        unit = Decimal(1).scaleb(exponent)
        # A product with a whole number has the unit's exponent, as scaleb would give, at a quarter of the cost.
        return [unit * number for number in numbers]


def _floats(values: Sequence[Decimal | None]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


def _pack_text(values: Sequence[Decimal | None]) -> bytes:
    # As a decimal prints itself, with any exponent: that text alone brings back the same digits.
    text = ",".join("" if value is None else str(value) for value in values)
    return bytes((_TEXT,)) + _varint(len(values)) + _deflate(text.encode("ascii"))


def _unpack_text(packed: bytes) -> list[Decimal | None]:
    count, at = _read_varint(packed, 1)
    text = zlib.decompress(packed[at:], -zlib.MAX_WBITS).decode("ascii")
    return [Decimal(cell) if cell else None for cell in text.split(",")] if count else []


def _deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush()


def _zigzag(number: int) -> int:
    return number * 2 if number >= 0 else -number * 2 - 1


def _unzigzag(number: int) -> int:
    return number // 2 if number % 2 == 0 else -(number // 2) - 1


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


__all__ = ["pack", "unpack", "unpack_floats"]
