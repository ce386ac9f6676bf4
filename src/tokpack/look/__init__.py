"""Figures and plots of datasets and tokenizers, for terminals and pages."""

from tokpack.look.page import PAGE_KIND, page
from tokpack.look.statistics import (
    CrossDuplicates,
    DuplicateFinder,
    Stats,
    hash_documents,
    stats,
    stats_task,
)
from tokpack.look.tokenizers import TokenizerFacts, tokenizer_facts

__all__ = [
    "PAGE_KIND",
    "CrossDuplicates",
    "DuplicateFinder",
    "Stats",
    "TokenizerFacts",
    "hash_documents",
    "page",
    "stats",
    "stats_task",
    "tokenizer_facts",
]
