"""What is done to a finished dataset: verify, merge, split, convert, adopt."""

from __future__ import annotations

from tokpack.operations.adopt import adopt
from tokpack.operations.convert import ConvertResult, convert
from tokpack.operations.merge import merge
from tokpack.operations.split import split
from tokpack.operations.verify import VerifyReport, verify

__all__ = [
    "ConvertResult",
    "VerifyReport",
    "adopt",
    "convert",
    "merge",
    "split",
    "verify",
]
