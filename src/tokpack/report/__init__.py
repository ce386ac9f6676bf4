"""What a dataset holds: on one screen, document by document, and in figures and plots."""

from tokpack.report.duplicates import CrossDuplicates, DuplicateFinder
from tokpack.report.overview import Overview, describe, overview
from tokpack.report.page import PAGE_KIND, page
from tokpack.report.select import Match, grep, random_documents, ranges, sample_documents
from tokpack.report.sources import Sources, doubt
from tokpack.report.spelling import Spelling
from tokpack.report.stats import Stats, hash_documents, stats
from tokpack.report.text import document_text, turns_of
from tokpack.report.tokenizer import find_tokenizer, spelling_of
from tokpack.report.tokenizer_facts import TokenizerFacts, tokenizer_facts

__all__ = [
    "PAGE_KIND",
    "CrossDuplicates",
    "DuplicateFinder",
    "Match",
    "Overview",
    "Sources",
    "Spelling",
    "Stats",
    "TokenizerFacts",
    "describe",
    "document_text",
    "doubt",
    "find_tokenizer",
    "grep",
    "hash_documents",
    "overview",
    "page",
    "random_documents",
    "ranges",
    "sample_documents",
    "spelling_of",
    "stats",
    "tokenizer_facts",
    "turns_of",
]
