"""Objects that are written: whole or not at all, in place of what a request may replace alone.

A large one is made of ranges of files and of other objects. S3 copies what it has itself; all else
is read here, and sent on.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import InputError, OutputError, StoreError, UsageError
from tokpack.storage.disk import identity
from tokpack.storage.objects import access
from tokpack.storage.objects import urls as limits
from tokpack.storage.objects.access import Ranges, objects
from tokpack.storage.objects.trouble import ChangedError, cannot_write
from tokpack.storage.objects.urls import (
    LocalFile,
    Range,
    StoredObject,
    file_chunks,
    hub_repository,
    matches,
    place_of,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.storage.objects.urls import PutMode

_logger = logging.getLogger(__name__)

LEAST_PART, MOST_PART, MOST_PARTS = 5 << 20, 5 << 30, 10_000  # of S3; the last part may be smaller
COPY_BYTES = 512 << 20  # of a part that is copied, so that many are copied at a time
_DOUBLED = 4  # times that parts may double where they are too many; each is held in memory


class TakenError(OutputError):
    """What is there is not what was looked at, or written."""

    def __init__(self, url: str, now: str = "exists") -> None:
        super().__init__(
            f"{shown(url)} {now}: choose another output, or run again when nothing else writes to "
            "it: another run has done so meanwhile"
        )


def write(content: bytes | Sequence[Range], url: str, mode: PutMode = "overwrite") -> StoredObject:
    """Make an object, in place of what ``mode`` allows. Raises OutputError, TakenError."""
    written = objects.put(url, content, mode)
    if written is None:
        raise TakenError(url)
    return written


def check_writable(url: str) -> None:
    """See that an object can be written: one without bytes, which is removed. OutputError.

    On the hub, where each would be a commit, by what the account may do; a repository that is not
    there is made.
    """
    if repository := hub_repository(url):
        if objects.create_repository(url):
            _logger.warning("made the private repository %s of datasets on the hub", repository)
        return
    # Where one is there, the store has answered; an empty one is left of a command that was killed.
    written = objects.put(url, b"", "create") or objects.stat(url)
    if written and not written.size:
        with suppress(OutputError):  # without the right to delete, it stays
            objects.delete(url, written)


def abort(url: str, upload: str) -> None:
    """Give up the upload of which ``send`` told. Raises OutputError."""
    with cannot_write():
        objects.abort(url, upload)


def send(
    path: str,
    url: str,
    mode: PutMode = "overwrite",
    *,
    begun: Callable[[str], None] = lambda upload: None,
    check: Callable[[], None] = lambda: None,
) -> StoredObject:
    """Make an object of a file; what ``mode`` allows is replaced when the new one is complete.

    ``begun`` is told the name of a multipart upload, which ``abort`` takes. ``check`` is called
    last before that, and may raise. Raises OutputError, TakenError.
    """
    path = os.path.abspath(path)
    version = identity(path)
    assert version
    whole = Range(LocalFile(path, version), 0, version.size)
    if whole.size <= limits.PART_BYTES:
        check()
        return write([whole], url, mode)
    return compose(url, [whole], mode=mode, begun=begun, check=check)


def compose(
    url: str,
    ranges: Sequence[Range],
    on_bytes: Callable[[int], None] = lambda size: None,
    mode: PutMode = "overwrite",
    *,
    begun: Callable[[str], None] = lambda upload: None,
    check: Callable[[], None] = lambda: None,
) -> StoredObject:
    """Make an object that consists of ``ranges``, in order; ``on_bytes`` gets the size of each.

    Sources are read only in their version. InputError where one is another by now or cannot be
    read, OutputError where the object cannot be written, TakenError where ``mode`` forbids it,
    UsageError for too many ranges. ``begun`` and ``check`` are as in ``send``.
    """
    ranges = [one for one in ranges if one.size]
    size = sum(one.size for one in ranges)
    if place_of(url).kind == "s3" and ranges:
        with cannot_write():
            etag, ours = _in_parts(url, ranges, mode, on_bytes=on_bytes, begun=begun, check=check)
        written = StoredObject(url, size, etag, 0, ours=ours)
    else:
        check()
        written = write(ranges, url, mode)
        on_bytes(size)
    try:
        # Once more, for some stores do not know of conditions.
        for source in {one.source for one in ranges}:
            if isinstance(source, LocalFile):
                source.check_same()
        objects.check_same(*{one.source for one in ranges if isinstance(one.source, StoredObject)})
    except BaseException:
        if written.ours:
            objects.delete(url, written)
        raise
    return written


class UploadPart(NamedTuple):
    """A part of an upload: one range that the store copies, or several that pass through here."""

    ranges: list[Range]
    copied: bool


def parts_of(ranges: Sequence[Range], url: str) -> list[UploadPart]:
    """The parts of an upload to S3 within its limits. UsageError where there are too many ranges.

    What is smaller than a part is joined with its neighbours, here; so is what is not on S3.
    """
    size = sum(one.size for one in ranges)
    most = min(max(COPY_BYTES, -(-2 * size // MOST_PARTS)), MOST_PART)
    for times in range(_DOUBLED + 1):
        parts = list(_parts(ranges, LEAST_PART << times, most, limits.part_bytes(size)))
        if len(parts) <= MOST_PARTS:
            return parts
    raise UsageError(
        f"{shown(url)}: {len(ranges)} objects are too many for one on S3, which has {MOST_PARTS} "
        "parts at most: merge some of them first, then what came of that"
    )


def _parts(ranges: Sequence[Range], least: int, most: int, sent: int) -> Iterator[UploadPart]:
    joined: list[Range] = []
    pending, on_s3 = 0, False  # bytes in them; whether the last one is
    for source, first, end in ranges:
        begin = first
        on_s3 = isinstance(source, StoredObject) and place_of(source.url).kind == "s3"
        while begin < end:
            left = end - begin
            alone = on_s3 and left >= least
            full = least if alone else max(least, sent if not on_s3 else limits.PART_BYTES)
            if alone and not pending:
                size = -(-left // -(-left // most))  # parts of one size, none of which is small
                yield UploadPart([Range(source, begin, begin + size)], copied=True)
            else:
                size = max(min(left, full - pending), 0)
                joined.append(Range(source, begin, begin + size))
                pending += size
                if pending >= full:
                    yield UploadPart(joined, copied=False)
                    joined, pending = [], 0
            begin += size
    if joined:  # the last part may be small
        yield UploadPart(joined, copied=len(joined) == 1 and on_s3 and _is_whole(joined[0]))


def _in_parts(
    url: str,
    ranges: Sequence[Range],
    mode: PutMode,
    *,
    on_bytes: Callable[[int], None],
    begun: Callable[[str], None],
    check: Callable[[], None],
) -> tuple[str, bool]:
    """Make an object of S3 in parts; its ETag, and whether it is ours."""
    parts = parts_of(ranges, url)
    upload = objects.begin(url)
    telling = threading.Lock()

    def make(job: tuple[int, UploadPart]) -> str:
        number, part = job
        if part.copied:
            with _reading():
                etag = objects.copy_part(url, upload, number, part.ranges[0])
        else:
            with _reading():
                content = _content(part.ranges)
            etag = objects.part(url, upload, number, content)
        with telling:
            on_bytes(sum(one.size for one in part.ranges))
        return etag

    try:
        begun(upload)
        workers = access.copiers if any(part.copied for part in parts) else access.senders
        etags = workers.map(make, enumerate(parts, 1))
        check()
        if mode != "overwrite" and not matches(objects.stat(url), mode):
            raise TakenError(url)  # some stores do not know of conditions
        result = objects.complete(url, upload, etags, mode)
        if result is None:
            raise TakenError(url)
        return result
    except BaseException as error:
        with suppress(StoreError):
            objects.abort(url, upload)
        if isinstance(error, ChangedError):
            raise TakenError(url) from error
        raise


def _content(ranges: Sequence[Range]) -> bytes | Sequence[Range]:
    """The bytes of several ranges; as ranges where all are of files.

    Those of objects are read side by side.
    """
    stored = [(one.source, *one[1:]) for one in ranges if isinstance(one.source, StoredObject)]
    if not stored:
        return ranges
    fetched = iter(Ranges(stored).take())
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


def _is_whole(one: Range) -> bool:
    """Whether a range is all of an object."""
    return isinstance(one.source, StoredObject) and one.size == one.source.size
