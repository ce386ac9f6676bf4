"""Objects on stores: s3, gs, az and https through obstore, everything else through fsspec."""

from tokpack.storage.objects.access import (
    KeptRanges,
    Ranges,
    Reader,
    objects,
    open_object,
    use_in_this_process,
)
from tokpack.storage.objects.upload import (
    TakenError,
    abort,
    check_writable,
    compose,
    writes_conditionally,
)
from tokpack.storage.objects.urls import (
    LocalFile,
    Range,
    StoredObject,
    hub_repository,
    is_url,
    object_of,
    place_of,
    shown,
)

__all__ = [
    "KeptRanges",
    "LocalFile",
    "Range",
    "Ranges",
    "Reader",
    "StoredObject",
    "TakenError",
    "abort",
    "check_writable",
    "compose",
    "hub_repository",
    "is_url",
    "object_of",
    "objects",
    "open_object",
    "place_of",
    "shown",
    "use_in_this_process",
    "writes_conditionally",
]
