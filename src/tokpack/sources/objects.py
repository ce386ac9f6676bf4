"""Objects on a store as sources: what a URL names, looked at many at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from tokpack import stores
from tokpack.errors import InputError
from tokpack.sources.base import Source
from tokpack.sources.detect import HEAD_BYTES, detect
from tokpack.sources.folders import if_document, is_sidecar, no_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_AT_ONCE = 64


def objects(url: str, input_format: str) -> Iterator[Source]:
    """The objects that a URL names: one, those of a folder, or those that match. InputError."""
    for folder, found in stores.find(url):
        if folder:
            yield from _documents(folder, found, input_format)
        else:
            yield from (_source(one, head, input_format) for one, head in _with_heads(found))


def _documents(
    folder: str, found: list[stores.StoredObject], input_format: str
) -> Iterator[Source]:
    """Those of a folder that hold documents, chosen as the files of a local one are."""
    names = {one.url for one in found}
    about = {one.url for one in found if is_sidecar(one.url, names.__contains__)}
    passed_over = [stores.shown(url) for url in sorted(about)]
    for one, head in _with_heads(one for one in found if one.url not in about):
        source = if_document(one.url, input_format, partial(_source, one, head))
        if source is None:
            passed_over.append(stores.shown(one.url))
        else:
            yield source
    if len(passed_over) == len(found):
        raise no_documents(stores.shown(folder), passed_over)


def _with_heads(
    found: Iterable[stores.StoredObject],
) -> Iterator[tuple[stores.StoredObject, bytes]]:
    rest = iter(found)
    while batch := list(islice(rest, _AT_ONCE)):
        yield from zip(batch, stores.heads(batch, HEAD_BYTES), strict=True)


def _source(one: stores.StoredObject, head: bytes, input_format: str) -> Source:
    name = stores.shown(one.url)
    source = Source(name, one.url, "", "", one.size, one.modified_ns, one.etag)
    format_, compression = detect(source, input_format, head)
    if format_ == "arrow":
        raise InputError(
            f"{name}: Arrow files are mapped, so they are read from disks only: copy it to one, or "
            "make it parquet"
        )
    return replace(source, format=format_, compression=compression)
