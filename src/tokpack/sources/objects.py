"""Objects on a store as sources: what a URL names, looked at many at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from tokpack import stores
from tokpack.errors import InputError
from tokpack.sources.base import Source
from tokpack.sources.detect import HEAD_BYTES, detect
from tokpack.sources.folders import (
    log_passed_over,
    no_documents,
    source_or_reason,
    why_leftover,
    why_sidecar,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_AT_ONCE = 64


def objects(url: str, input_format: str, json_path: str) -> Iterator[Source]:
    """The objects that a URL names: one, those of a folder, or those that match. InputError."""
    for folder, listed in stores.find(url):
        if folder:
            yield from _documents(folder, listed, input_format, json_path)
            continue
        passed_over = [(why_leftover(one.url, url), stores.shown(one.url)) for one in listed]
        named = [one for one, (why, _) in zip(listed, passed_over, strict=True) if not why]
        yield from (_source(one, head, json_path, input_format) for one, head in _with_heads(named))
        log_passed_over(stores.shown(url), filter(itemgetter(0), passed_over), input_format)


def _documents(
    folder: str, listed: list[stores.StoredObject], input_format: str, json_path: str
) -> Iterator[Source]:
    """Those of a folder that hold documents, chosen as the files of a local one are."""
    names = {one.url for one in listed}
    about = {one.url: why_sidecar(one.url, input_format, names.__contains__) for one in listed}
    reasons = [(reason, stores.shown(url)) for url, reason in sorted(about.items()) if reason]
    for one, head in _with_heads(one for one in listed if not about[one.url]):
        make = partial(_source, one, head, json_path, opens_archives=input_format != "file")
        source = source_or_reason(one.url, input_format, make)
        if isinstance(source, str):
            reasons.append((source, stores.shown(one.url)))
        else:
            yield source
    if len(reasons) == len(listed):
        raise no_documents(stores.shown(folder), reasons)
    log_passed_over(stores.shown(folder), reasons, input_format)


def _with_heads(
    listed: Iterable[stores.StoredObject],
) -> Iterator[tuple[stores.StoredObject, bytes]]:
    rest = iter(listed)
    while batch := list(islice(rest, _AT_ONCE)):
        yield from zip(batch, stores.heads(batch, HEAD_BYTES), strict=True)


def _source(
    one: stores.StoredObject,
    head: bytes,
    json_path: str,
    input_format: str,
    *,
    opens_archives: bool = True,
) -> Source:
    name = stores.shown(one.url)
    source = Source(name, one.url, "", "", one.size, one.modified_ns, one.etag)
    source = replace(source, json_path=json_path)
    format_, compression = detect(source, input_format, head, opens_archives=opens_archives)
    if format_ == "arrow":
        raise InputError(
            f"{name}: Arrow files are mapped, so they are read from disks only: copy it to one, or "
            "make it parquet"
        )
    return replace(source, format=format_, compression=compression)
