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
    listed_files,
    located,
    near,
    open_file,
    paths_of,
    refuse,
    small_files,
    storage_of,
)
from tokpack.storage.objects import (
    KeptRanges,
    LocalFile,
    Range,
    Ranges,
    Reader,
    StoredObject,
    TakenError,
    check_writable,
    compose,
    hub_repository,
    is_url,
    open_object,
    place_of,
    shown,
    use_in_this_process,
    writes_conditionally,
)
from tokpack.storage.objects import objects as _objects
from tokpack.storage.outputs import (
    NewObjects,
    check_unchanged,
    look,
    remove,
    replace,
    versions_of,
)
from tokpack.storage.scratch import (
    ScratchFolder,
    SentNote,
    remove_left,
    scratch_path,
)

if TYPE_CHECKING:
    from tokpack.storage.files import PathLike as PathLike

amounts = _objects.amounts
check_root = _objects.check_root
check_same = _objects.check_same
copies = _objects.copies
find = _objects.find
heads = _objects.heads
named = _objects.named
stat = _objects.stat
stats = _objects.stats

__all__ = [
    "Identity",
    "KeptRanges",
    "ListedFile",
    "LocalFile",
    "NewObjects",
    "Range",
    "Ranges",
    "Reader",
    "ScratchFolder",
    "SentNote",
    "StoredObject",
    "TakenError",
    "Version",
    "amounts",
    "check_root",
    "check_same",
    "check_unchanged",
    "check_writable",
    "compose",
    "copies",
    "exists",
    "find",
    "head",
    "heads",
    "hub_repository",
    "identity",
    "is_file",
    "is_url",
    "joined",
    "listed_files",
    "located",
    "look",
    "named",
    "near",
    "open_file",
    "open_object",
    "paths_of",
    "place_of",
    "refuse",
    "remove",
    "remove_left",
    "replace",
    "scratch_path",
    "shown",
    "small_files",
    "stat",
    "stats",
    "storage_of",
    "use_in_this_process",
    "versions_of",
    "writes_conditionally",
]
