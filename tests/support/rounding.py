"""Bounds of rounding errors, each from the unit roundoff of a type and a number of operations.

An operation gives its exact result times 1 + d, where |d| is at most the unit roundoff u. What n
operations in a row make of a value is off by at most gamma(n) = n u / (1 - n u) of the sum of the
absolute values of the terms: in whatever order a processor sums them, with or without fused
multiplications (Higham, Accuracy and Stability of Numerical Algorithms, chapter 3).
"""

from __future__ import annotations

from typing import Any

import pytest

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
UNIT["float8"] = 2.0**-4  # e4m3

# A forward pass of the models here: six products in a row in each of up to five layers (queries and
# keys, scores, values, out, up, down) and the head's. The way back has as many.
PRODUCTS = 6 * 5 + 1
TERMS = 1024  # at most of a sum: rows of the vocabulary, positions of a batch, the width of an MLP


def gamma(operations: int, dtype: str = "float64") -> float:
    """The largest relative error of so many operations in a row."""
    amount = operations * UNIT[dtype]
    assert amount < 1
    return amount / (1 - amount)


def equal(value: Any, operations: int) -> Any:
    """A value that two programs compute in float64, with at most so many operations each.

    They add up positive terms; otherwise the value is no measure of its terms.
    """
    return pytest.approx(value, rel=2 * gamma(operations), abs=0)


# Losses and norms of two runs in float64 of up to 50 steps, forward and back; they are below 16. To
# first order each step adds its own errors to those before it: AdamW divides a gradient by its
# size, so that a step is off by lr du / |g|, which changes the loss by g times that, lr du.
EXACT = 16 * 2 * gamma(50 * 2 * PRODUCTS * TERMS)


def likely(operations: int, dtype: str) -> float:
    """The largest relative error of so many operations, but for a chance of 1e-15.

    Where gamma is too wide to tell anything: errors of random signs add up to 10 sqrt(n) u with a
    probability of 1 - 2 n exp(-50) (Higham and Mary, SIAM J. Sci. Comput. 41, A2815, 2019).
    """
    bound = 10 * operations**0.5 * UNIT[dtype]
    assert operations < 1e6
    assert bound < 0.5
    return bound
