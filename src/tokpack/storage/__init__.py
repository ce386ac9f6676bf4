"""Files of a disk and objects of stores, by paths and URLs alike."""

from tokpack.storage.files import (
    Identity,
    exists,
    head,
    identity,
    is_file,
    joined,
    located,
    near,
    open_file,
    paths_of,
    refuse,
)
from tokpack.storage.objects import access
from tokpack.storage.objects.access import (
    KeptRanges,
    Ranges,
    Reader,
    open_object,
    use_in_this_process,
)
from tokpack.storage.objects.urls import StoredObject, is_url, shown

check_root = access.objects.check_root
check_same = access.objects.check_same
copies = access.objects.copies
find = access.objects.find
heads = access.objects.heads
named = access.objects.named
stat = access.objects.stat
stats = access.objects.stats

__all__ = [
    "Identity",
    "KeptRanges",
    "Ranges",
    "Reader",
    "StoredObject",
    "check_root",
    "check_same",
    "copies",
    "exists",
    "find",
    "head",
    "heads",
    "identity",
    "is_file",
    "is_url",
    "joined",
    "located",
    "named",
    "near",
    "open_file",
    "open_object",
    "paths_of",
    "refuse",
    "shown",
    "stat",
    "stats",
    "use_in_this_process",
]
