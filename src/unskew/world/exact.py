"""Functions whose results are the same to the last bit on every machine.

`np.exp`, `np.log`, `np.sin`, powers, random normals and matrix products are not: their last bits depend on
the processor, on the C library and on the BLAS. Here everything is made of what IEEE 754 defines exactly:
sums, products, quotients and square roots of single numbers, rounding, and powers of two. The result of a sum
of many numbers depends on their order. So such sums have a fixed order, or are taken of multiples of GRID or
of whole numbers only, where every partial sum is exact.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

GRID = 2.0**-16  # vectors are rounded to multiples of this, so their products are exact in float64
SMALLEST = -80.0  # the exponent from where on `exp` does not fall any further

LOG2 = 0.6931471805599453
LOG2_HIGH = 355 / 512  # nearly log(2), with so few digits that its products with small numbers are exact
EXP_TERMS, LOG_TERMS, SINE_TERMS = 7, 11, 9  # of each series, after which nothing changes


def on_grid(vectors: NDArray[np.floating]) -> Floats:
    """The nearest multiples of GRID, which float32 holds exactly below 256."""
    return np.asarray(np.rint(np.asarray(vectors, np.float64) / GRID) * GRID, np.float32)


def exp(exponent: ArrayLike) -> Floats:
    """The exponential function in float32, with a relative error below 2e-7."""
    x = np.maximum(np.asarray(exponent, np.float32), np.float32(SMALLEST))
    power = np.rint(x * np.float32(1 / LOG2))
    x -= power * np.float32(LOG2_HIGH)
    x -= power * np.float32(LOG2 - LOG2_HIGH)
    value = np.full_like(x, 1 / math.factorial(EXP_TERMS))
    for degree in range(EXP_TERMS - 1, -1, -1):
        value *= x
        value += np.float32(1 / math.factorial(degree))
    bits = value.view(np.int32)
    bits += power.astype(np.int32) << 23
    return value


def log(number: ArrayLike) -> Doubles:
    """The natural logarithm of positive numbers."""
    mantissa, exponent = np.frexp(np.asarray(number, np.float64))
    is_small = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(is_small, 2 * mantissa, mantissa), exponent - is_small
    s = (mantissa - 1) / (mantissa + 1)
    square, series = s * s, np.zeros_like(s)
    for term in range(LOG_TERMS, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    return np.asarray(exponent * LOG2 + 2 * s * series)


def sine_and_cosine(turns: ArrayLike) -> tuple[Doubles, Doubles]:
    """The sine and the cosine of angles that are given in full turns."""
    angle = np.asarray(turns, np.float64)
    angle = angle - np.rint(angle)
    quarter = np.rint(4 * angle)
    x = (angle - quarter / 4) * 6.283185307179586
    square, sine, cosine = x * x, np.zeros_like(x), np.zeros_like(x)
    for term in range(SINE_TERMS, -1, -1):
        sine = 1 - sine * square / ((2 * term + 2) * (2 * term + 3))
        cosine = 1 - cosine * square / ((2 * term + 1) * (2 * term + 2))
    sine = sine * x
    is_odd, is_half = quarter % 2 == 1, np.abs(quarter) == 2
    up = np.where(is_half, -1.0, 1.0)
    side = np.where(quarter < 0, -1.0, 1.0)
    return np.where(is_odd, side * cosine, up * sine), np.where(is_odd, -side * sine, up * cosine)


def power(base: float, exponent: ArrayLike) -> Doubles:
    """A number to whole powers of at least 0, by repeated squaring."""
    rest, square = np.array(exponent, np.int64), float(base)
    result = np.ones(rest.shape)
    while rest.any():
        result[rest & 1 == 1] *= square
        square *= square
        rest >>= 1
    return result


def normal(random: np.random.Generator, shape: int | tuple[int, ...]) -> Doubles:
    """Random numbers of the standard normal distribution, by the method of Box and Muller."""
    radius = np.sqrt(-2 * log(1 - random.random(shape)))
    return np.asarray(radius * sine_and_cosine(random.random(shape))[0])


def row_sums(table: Doubles) -> Doubles:
    """The sums of all rows, (rows, 1), from left to right."""
    return np.asarray(sum(table.T))[:, None]


def products(rows: Floats, columns: Floats) -> Floats:
    """The products of all rows of two tables of multiples of GRID, (rows, columns)."""
    return np.asarray(rows.astype(np.float64) @ columns.astype(np.float64).T, np.float32)


def product_of_each(rows: Floats, others: Floats) -> Floats:
    """The product of each row of a table of multiples of GRID with the same row of another one."""
    return np.asarray(np.einsum("nd,nd->n", rows.astype(np.float64), others.astype(np.float64)), np.float32)
