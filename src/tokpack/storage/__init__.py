"""Files of a disk and objects of stores, by paths and URLs alike."""

from typing import TYPE_CHECKING

from tokpack.storage.files import (
    Identity,
    ListedFile,
    Version,
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
    small_files,
    storage_of,
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

if TYPE_CHECKING:
    from tokpack.storage.files import PathLike as PathLike

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
    "ListedFile",
    "Ranges",
    "Reader",
    "StoredObject",
    "Version",
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
    "small_files",
    "stat",
    "stats",
    "storage_of",
    "use_in_this_process",
]
