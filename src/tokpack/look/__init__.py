"""Figures and plots of datasets and tokenizers, for terminals and pages."""

from tokpack.look.page import PAGE_KIND as PAGE_KIND
from tokpack.look.page import page as page
from tokpack.look.statistics import CrossDuplicates as CrossDuplicates
from tokpack.look.statistics import DuplicateFinder as DuplicateFinder
from tokpack.look.statistics import Stats as Stats
from tokpack.look.statistics import hash_documents as hash_documents
from tokpack.look.statistics import stats as stats
from tokpack.look.statistics import stats_task as stats_task
from tokpack.look.tokenizers import TokenizerFacts as TokenizerFacts
from tokpack.look.tokenizers import tokenizer_facts as tokenizer_facts
