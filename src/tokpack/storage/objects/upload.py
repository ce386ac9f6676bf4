"""Objects are written whole or not at all, and replace only the version that a request may replace.

A large object is made of ranges of files and of other objects. S3 copies ranges of its own objects;
all others are read here and sent.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import InputError, OutputError, StoreError, UsageError
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
COPY_BYTES = 512 << 20  # of a part that S3 copies; small enough for many at a time
_DOUBLED = 4  # doublings of the part size for large objects; parts are held in memory


class TakenError(OutputError):
    """The object is not in the version that was looked at, or written."""

    def __init__(self, url: str, now: str = "exists") -> None:
        super().__init__(
            f"{shown(url)} {now}: choose another output, or run again when nothing else writes to "
            "it: another run has done so meanwhile"
        )


def write(content: bytes | Sequence[Range], url: str, mode: PutMode = "overwrite") -> StoredObject:
    """Write an object, in place of what ``mode`` allows. Raises OutputError, TakenError."""
    written = objects.put(url, content, mode)
    if written is None:
        raise TakenError(url)
    return written


def check_writable(url: str) -> None:
    """Raise OutputError if no object can be written. An empty one is written, and removed.

    On the hub both would be commits. So there the account's rights are checked instead, and a
    missing repository is created.
    """
    if repository := hub_repository(url):
        if objects.create_repository(url):
            _logger.warning("made the private dataset repository %s on the hub", repository)
        return
    # If an object of this name exists, the store's answer is enough. An empty one was left by a
    # killed command.
    written = objects.put(url, b"", "create") or objects.stat(url)
    if written and not written.size:
        with suppress(OutputError):  # a user who may write but not delete leaves it there
            objects.delete(url, written)


def writes_conditionally(url: str) -> bool:
    """Whether a store refuses to create an existing object; tried with ``url``, then removed.

    OutputError if nothing can be written.
    """
    if not place_of(url).kind:
        return False
    objects.put(url, b"1")
    refuses = objects.put(url, b"2", "create") is None
    objects.delete(url)
    return refuses


def abort(url: str, upload: str) -> None:
    """Abort an upload whose id ``compose`` has told. Raises OutputError."""
    with cannot_write():
        objects.abort(url, upload)


def compose(
    url: str,
    ranges: Sequence[Range],
    on_bytes: Callable[[int], None] = lambda size: None,
    mode: PutMode = "overwrite",
    *,
    begun: Callable[[str], None] = lambda upload: None,
    check: Callable[[], None] = lambda: None,
) -> StoredObject:
    """Make an object that consists of ``ranges``, in order; ``on_bytes`` is told what was sent.

    What ``mode`` allows is replaced when the new object is complete. ``begun`` is called with the
    id of an upload in parts, for ``abort``. ``check`` is called just before the object appears, and
    may raise. Sources are read only in the version that a range names. InputError if one has been
    replaced or cannot be read, OutputError if the object cannot be written, TakenError if ``mode``
    forbids it, UsageError for too many ranges.
    """
    ranges = [one for one in ranges if one.size]
    size = sum(one.size for one in ranges)
    is_here = all(isinstance(one.source, LocalFile) for one in ranges)
    if place_of(url).kind == "s3" and not (is_here and size <= limits.PART_BYTES):
        with cannot_write():
            etag, ours = _in_parts(url, ranges, mode, on_bytes=on_bytes, begun=begun, check=check)
        written = StoredObject(url, size, etag, 0, ours=ours)
    else:
        check()
        written = write(ranges, url, mode)
        on_bytes(size)
    try:
        # Compare the sources again at the end, because some stores ignore conditions.
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
    """A part of an upload: one range that the store copies, or several that are sent from here."""

    ranges: list[Range]
    copied: bool


def parts_of(ranges: Sequence[Range], url: str) -> list[UploadPart]:
    """The parts of an upload within the limits of S3. UsageError if there are too many ranges.

    S3 cannot copy a range smaller than the least part: such a range is read here and joined with
    its neighbours, and so are ranges that are not on S3.
    """
    size = sum(one.size for one in ranges)
    most = min(max(COPY_BYTES, -(-2 * size // MOST_PARTS)), MOST_PART)
    for times in range(_DOUBLED + 1):
        parts = list(_parts(ranges, LEAST_PART << times, most, limits.part_bytes(size)))
        if len(parts) <= MOST_PARTS:
            return parts
    raise UsageError(
        f"{shown(url)}: {len(ranges)} objects are too many for one on S3, which allows "
        f"{MOST_PARTS} parts: merge groups of them first, then the results"
    )


def _parts(ranges: Sequence[Range], least: int, most: int, sent: int) -> Iterator[UploadPart]:
    joined: list[Range] = []
    pending, on_s3 = 0, False  # bytes collected; whether the last range is on S3
    for source, first, end in ranges:
        begin = first
        on_s3 = isinstance(source, StoredObject) and place_of(source.url).kind == "s3"
        while begin < end:
            left = end - begin
            alone = on_s3 and left >= least
            full = least if alone else max(least, sent if not on_s3 else limits.PART_BYTES)
            if alone and not pending:
                size = -(-left // -(-left // most))  # equal parts, so that none is too small
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
    """Make an object on S3 in parts. Returns its ETag and whether it is ours, see Objects.put."""
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
            raise TakenError(url)  # checked here: some stores ignore the condition below
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
    """The bytes of several ranges, those of objects read at the same time.

    Ranges of files are returned as they are, to be read while they are sent.
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
    """Raise InputError if a source cannot be read: the output is not at fault."""
    try:
        yield
    except StoreError as error:
        raise InputError(str(error)) from error


def _is_whole(one: Range) -> bool:
    """Whether a range is a whole object."""
    return isinstance(one.source, StoredObject) and one.size == one.source.size
