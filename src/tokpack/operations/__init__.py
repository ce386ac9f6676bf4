"""What is done to a finished dataset: verify, repair, merge, split, convert."""

from __future__ import annotations

from tokpack.operations.repair import RepairReport, repair
from tokpack.operations.verify import VerifyReport, verify

__all__ = ["RepairReport", "VerifyReport", "repair", "verify"]
