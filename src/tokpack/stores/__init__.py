"""Objects on stores: s3, gs, az, abfs and https through obstore, everything else through fsspec."""

from tokpack.stores.access import (
    Reader,
    check_same,
    contents,
    delete,
    find,
    heads,
    named,
    objects_in,
    open_object,
    open_reader,
    put,
    stat,
    use_in_this_process,
)
from tokpack.stores.urls import StoredObject, is_url, shown

__all__ = [
    "Reader",
    "StoredObject",
    "check_same",
    "contents",
    "delete",
    "find",
    "heads",
    "is_url",
    "named",
    "objects_in",
    "open_object",
    "open_reader",
    "put",
    "shown",
    "stat",
    "use_in_this_process",
]
