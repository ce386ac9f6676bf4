"""One object made of ranges of others: by the store itself, where it can, and few bytes pass here.

S3 copies parts of an upload from other objects, GCS composes objects of one bucket. Everywhere else
the bytes are read here, and sent on.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.errors import InputError, StoreError, UsageError
from tokpack.stores import access, gcs
from tokpack.stores.objects import PART_BYTES
from tokpack.stores.ranges import LocalFile, Range, file_chunks
from tokpack.stores.s3 import said, value_of
from tokpack.stores.trouble import ChangedError, changed
from tokpack.stores.upload import cannot_write, in_parts, remove, send_part, taken, write
from tokpack.stores.urls import StoredObject, place_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.stores.objects import PutMode

LEAST_PART, MOST_PART, MOST_PARTS = 5 << 20, 5 << 30, 10_000  # of S3; the last part may be smaller
COPY_BYTES = 512 << 20  # of a part that is copied, so that many are copied at a time
_AT_ONCE = 16
_DOUBLED = 4  # times that parts may double where they are too many; each is held in memory


class UploadPart(NamedTuple):
    """A part of an upload: one range that the store copies, or several that pass through here."""

    ranges: list[Range]
    copied: bool


def compose(
    url: str, ranges: Sequence[Range], told: Callable[[int], None], mode: PutMode = "overwrite"
) -> StoredObject:
    """Make an object that consists of ``ranges``, in order; ``told`` hears of bytes that are there.

    Objects are read only as they were found. InputError where one is another by now or cannot be
    read, OutputError where the new one cannot be written, TakenError where ``mode`` forbids it,
    UsageError for too many ranges.
    """
    ranges = [one for one in ranges if one.size]
    size = sum(one.size for one in ranges)
    kind = place_of(url).kind
    with cannot_write(url):
        if not ranges:
            written = write(b"", url, mode)
        elif kind == "s3":
            parts = parts_of(ranges, url)
            etag = in_parts(url, parts, _maker(url, told), mode, at_once=_AT_ONCE)
            written = StoredObject(url, size, etag, 0)
        elif kind == "gs" and all(map(_is_whole, ranges)) and _one_bucket(url, ranges):
            sources = [one.source for one in ranges if isinstance(one.source, StoredObject)]
            gcs.compose(url, sources, mode)
            written = taken(url, access.stat(url))
            told(size)
        else:
            written = taken(url, access.join(url, ranges, mode))
            told(size)
    try:
        _check_same({one.source for one in ranges})
    except BaseException:
        remove(url, written)
        raise
    return written


def _check_same(sources: set[StoredObject | LocalFile]) -> None:
    """InputError where a source was replaced meanwhile: some stores do not know of conditions."""
    for file in sources:
        if isinstance(file, LocalFile):
            file.check_same()
    access.check_same(*(one for one in sources if isinstance(one, StoredObject)))


def parts_of(ranges: Sequence[Range], url: str) -> list[UploadPart]:
    """The parts of an upload to S3 within its limits. UsageError where there are too many ranges.

    What is smaller than a part is joined with its neighbours, here; so is what is not on S3.
    """
    size = sum(one.size for one in ranges)
    most = min(max(COPY_BYTES, -(-2 * size // MOST_PARTS)), MOST_PART)
    for times in range(_DOUBLED + 1):
        parts = list(_parts(ranges, LEAST_PART << times, most))
        if len(parts) <= MOST_PARTS:
            return parts
    raise UsageError(
        f"{shown(url)}: {len(ranges)} objects are too many for one on S3, which has {MOST_PARTS} "
        "parts at most: merge some of them first, then what came of that"
    )


def _parts(ranges: Sequence[Range], least: int, most: int) -> Iterator[UploadPart]:
    joined: list[Range] = []
    held, on_s3 = 0, False  # bytes in them; whether the last one is
    for source, first, end in ranges:
        begin = first
        on_s3 = isinstance(source, StoredObject) and place_of(source.url).kind == "s3"
        while begin < end:
            left = end - begin
            alone = on_s3 and left >= least
            full = least if alone else max(least, PART_BYTES)
            if alone and not held:
                size = -(-left // -(-left // most))  # parts of one size, none of which is small
                yield UploadPart([Range(source, begin, begin + size)], copied=True)
            else:
                size = max(min(left, full - held), 0)
                joined.append(Range(source, begin, begin + size))
                held += size
                if held >= full:
                    yield UploadPart(joined, copied=False)
                    joined, held = [], 0
            begin += size
    if joined:  # the last part may be small
        yield UploadPart(joined, copied=len(joined) == 1 and on_s3 and _is_whole(joined[0]))


def _maker(
    url: str, told: Callable[[int], None]
) -> Callable[[Any, dict[str, Any], UploadPart], str]:
    telling = threading.Lock()

    def make(client: Any, named: dict[str, Any], part: UploadPart) -> str:
        if part.copied:
            etag = _copy(client, named, part.ranges[0])
        else:
            etag = send_part(client, named, _content(part.ranges), url)
        with telling:
            told(sum(one.size for one in part.ranges))
        return etag

    return make


def _copy(client: Any, named: dict[str, Any], one: Range) -> str:
    assert isinstance(one.source, StoredObject)
    place = place_of(one.source.url)
    source: dict[str, Any] = {"CopySource": {"Bucket": place.root, "Key": place.key}}
    if one.source.etag:
        source["CopySourceIfMatch"] = one.source.etag
    if one.size < one.source.size:
        source["CopySourceRange"] = f"bytes={one.begin}-{one.end - 1}"
    with _reading(), said(one.source.url):
        answer = client.upload_part_copy(**named, **source)
    access.count_request()
    return value_of(answer.get("CopyPartResult", {}), "ETag", one.source.url)


def _content(ranges: Sequence[Range]) -> bytes:
    """The bytes of several ranges, one after the other."""
    stored = [(one.source, *one[1:]) for one in ranges if isinstance(one.source, StoredObject)]
    with _reading():
        fetched = iter(access.Ranges(stored).take())
    return b"".join(
        b"".join(file_chunks(source.path, begin, end))
        if isinstance(source, LocalFile)
        else next(fetched)
        for source, begin, end in ranges
    )


@contextmanager
def _reading() -> Iterator[None]:
    """Raise InputError where a source cannot be read, which is no failure to write."""
    try:
        yield
    except StoreError as error:
        raise InputError(str(error)) from error
    except ChangedError as error:
        raise InputError(str(changed(str(error)))) from error


def _is_whole(one: Range) -> bool:
    """Whether a range is all of an object."""
    return isinstance(one.source, StoredObject) and one.size == one.source.size


def _one_bucket(url: str, ranges: Sequence[Range]) -> bool:
    """Whether all objects are of the bucket of ``url``."""
    objects = [one.source for one in ranges if isinstance(one.source, StoredObject)]
    return {place_of(one.url)[:2] for one in objects} == {place_of(url)[:2]}
