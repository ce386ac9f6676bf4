"""What is done to a finished dataset: verify, merge, split, convert."""

from __future__ import annotations

from tokpack.operations.convert import ConvertResult, convert
from tokpack.operations.merge import merge
from tokpack.operations.split import split
from tokpack.operations.verify import VerifyReport, verify

__all__ = [
    "ConvertResult",
    "VerifyReport",
    "convert",
    "merge",
    "split",
    "verify",
]
