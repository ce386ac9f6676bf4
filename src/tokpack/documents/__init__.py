"""Documents chosen from datasets: views of them, which copy nothing."""

from __future__ import annotations

from tokpack.documents.alike import alike_task as alike_task
from tokpack.documents.conservation import Conservation as Conservation
from tokpack.documents.conservation import SampleReport as SampleReport
from tokpack.documents.conservation import compare_with_inputs as compare_with_inputs
from tokpack.documents.conservation import verify_sample as verify_sample
from tokpack.documents.decontamination import Decontamination as Decontamination
from tokpack.documents.decontamination import decontaminate as decontaminate
from tokpack.documents.decontamination import phrases_task as phrases_task
from tokpack.documents.deduplication import DedupReport as DedupReport
from tokpack.documents.deduplication import dedup as dedup
from tokpack.documents.keys import keys_task as keys_task
from tokpack.documents.selection import documents_where as documents_where
from tokpack.documents.selection import select as select
from tokpack.documents.write import write_view as write_view
