"""Documents chosen from datasets: views of them, which copy nothing."""

from __future__ import annotations

from tokpack.documents.decontaminate import Decontamination, decontaminate
from tokpack.documents.dedup import DedupReport, dedup
from tokpack.documents.select import select
from tokpack.documents.write import write_view

__all__ = ["Decontamination", "DedupReport", "decontaminate", "dedup", "select", "write_view"]
