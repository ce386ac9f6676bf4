"""Objects on stores: s3, gs, az, abfs and https through obstore, everything else through fsspec."""

from tokpack.stores.access import (
    Reader,
    check_same,
    find,
    heads,
    named,
    open_object,
    open_reader,
    stat,
    use_in_this_process,
)
from tokpack.stores.urls import StoredObject, is_url, shown

__all__ = [
    "Reader",
    "StoredObject",
    "check_same",
    "find",
    "heads",
    "is_url",
    "named",
    "open_object",
    "open_reader",
    "shown",
    "stat",
    "use_in_this_process",
]
