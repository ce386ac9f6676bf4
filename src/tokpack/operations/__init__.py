"""What is done to a finished dataset: verify, repair, merge, split, convert."""

from __future__ import annotations

from tokpack.operations.convert import Converted, convert
from tokpack.operations.merge import merge
from tokpack.operations.repair import RepairReport, repair
from tokpack.operations.split import split
from tokpack.operations.verify import VerifyReport, verify

__all__ = [
    "Converted",
    "RepairReport",
    "VerifyReport",
    "convert",
    "merge",
    "repair",
    "split",
    "verify",
]
