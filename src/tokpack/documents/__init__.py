"""Documents chosen from datasets: views of them, which copy nothing."""

from __future__ import annotations

from tokpack.documents.conservation import (
    Conservation,
    SampleReport,
    compare_with_inputs,
    verify_sample,
)
from tokpack.documents.decontaminate import Decontamination, decontaminate
from tokpack.documents.dedup import DedupReport, dedup
from tokpack.documents.select import select
from tokpack.documents.write import write_view

__all__ = [
    "Conservation",
    "Decontamination",
    "DedupReport",
    "SampleReport",
    "compare_with_inputs",
    "decontaminate",
    "dedup",
    "select",
    "verify_sample",
    "write_view",
]
