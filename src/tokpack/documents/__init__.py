"""Documents chosen from datasets: views of them, which copy nothing."""

from __future__ import annotations

from tokpack.documents.alike import alike_task
from tokpack.documents.conservation import (
    Conservation,
    SampleReport,
    compare_with_inputs,
    verify_sample,
)
from tokpack.documents.decontamination import Decontamination, decontaminate, phrases_task
from tokpack.documents.deduplication import DedupReport, dedup
from tokpack.documents.keys import keys_task
from tokpack.documents.selection import documents_where, select
from tokpack.documents.write import write_view

__all__ = [
    "Conservation",
    "Decontamination",
    "DedupReport",
    "SampleReport",
    "alike_task",
    "compare_with_inputs",
    "decontaminate",
    "dedup",
    "documents_where",
    "keys_task",
    "phrases_task",
    "select",
    "verify_sample",
    "write_view",
]
