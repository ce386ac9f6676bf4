"""What a dataset holds: on one screen, document by document, and in figures and plots."""

from tokpack.report.dataset import Opened, open_dataset
from tokpack.report.overview import Overview, overview
from tokpack.report.page import PAGE_KIND, page
from tokpack.report.pieces import Pieces
from tokpack.report.select import Match, grep, random_documents, ranges, sample_documents
from tokpack.report.stats import Stats, stats
from tokpack.report.tokenizer import find_tokenizer

__all__ = [
    "PAGE_KIND",
    "Match",
    "Opened",
    "Overview",
    "Pieces",
    "Stats",
    "find_tokenizer",
    "grep",
    "open_dataset",
    "overview",
    "page",
    "random_documents",
    "ranges",
    "sample_documents",
    "stats",
]
