"""From the names that the user gives to input files."""

from __future__ import annotations

import glob
import logging
import os
import re
import stat
import threading
import time
from collections import Counter, deque
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tokpack import storage
from tokpack.display import brief
from tokpack.errors import InputError, Remark, StoreError, UsageError, option
from tokpack.input_formats import FORMATS
from tokpack.quantities import counted
from tokpack.sources.base import STDIN, Source, is_pipe, printable
from tokpack.sources.compression import bare_name
from tokpack.sources.detect import (
    ARCHIVE,
    DOCUMENT_SUFFIXES,
    HEAD_BYTES,
    NoTextError,
    detect,
    head_of,
    is_json,
    is_markup,
    is_running_text,
    promised,
)
from tokpack.sources.hub import HUB_NAME, hub_files, is_saved_dataset, saved_files
from tokpack.storage import is_url, named, open_object, shown
from tokpack.storage.disk import did_you_mean, is_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


_log = logging.getLogger(__name__)
_DEEP = "**"
_SIDECAR = re.compile(
    r"(readme|license|licence|changelog|sha\d+sums?|md5sums?|_success)\b.*"
    r"|.*\.(md|rst|log|ya?ml|toml|sha\d+(sum)?|md5(sum)?|sig|asc|rejects\.jsonl)"
    r"|dataset_(infos?|dict)\.json|state\.json|_(common_)?metadata",
    re.IGNORECASE,
)
# Endings of unfinished downloads and of backups.
_LEFTOVERS = {
    "unfinished downloads": re.compile(
        r".*\.(part|partial|filepart|incomplete|(cr|op)?download|tmp|temp|aria2(__temp)?|!ut|!qb)",
        re.IGNORECASE,
    ),
    "backups": re.compile(r".*(\.(bak|backup|old|orig|sav|swp|swo)|~)|#.*#", re.IGNORECASE),
}
_TABLES = (".feather", ".ipc")  # recognized by their content
_NO_DOCUMENTS = "without documents"
_OTHER_TEXT = "text not named .txt"
_EMPTY = "empty"
_LONGEST_NAME = 255  # characters
has_magic = glob.has_magic


def has_document_name(path: str) -> bool:
    """Whether the name of a file alone says that it contains documents."""
    return bare_name(path).endswith(DOCUMENT_SUFFIXES)


def why_leftover(path: str, pattern: str = "") -> str:
    """The reason to skip a program's leftover file, or "".

    A ``pattern`` with such an ending asks for these files.
    """
    whys = (
        next((why for why, names in _LEFTOVERS.items() if names.fullmatch(name)), "")
        for name in map(os.path.basename, (path, pattern))
    )
    why, asked = whys
    return "" if why == asked else why


def why_sidecar(path: str, input_format: str, exists: Callable[[str], bool]) -> str:
    """The reason to skip a file in a folder because of its name, or "".

    It may describe other files (unless each file is a document), be a dataset's manifest, or a
    program's leftover.
    """
    stem, suffix = os.path.splitext(path)
    if suffix == ".json" and exists(stem + ".idx"):
        return "manifests of datasets"
    is_sidecar = input_format != "file" and _SIDECAR.fullmatch(os.path.basename(path))
    return "READMEs and the like" if is_sidecar else why_leftover(path)


def _source_or_reason(
    path: str, read_as: _ReadAs, source_of: Callable[[_ReadAs], Source]
) -> Source | str:
    """The source of a file in a folder, made by ``source_of``, or the reason to skip it.

    A file is taken if its name says that it has documents, or if its content is a format with
    documents; if each file is a document, all text is taken. InputError if the content does not fit
    the name, or is a pointer to another file: then documents might be missing.
    """
    input_format = read_as.input_format
    is_file = input_format == "file"
    is_sure = is_file or has_document_name(path)
    asked = input_format if is_sure else "auto"
    try:
        source = source_of(read_as._replace(input_format=asked, in_folder=True))
    except StoreError:
        raise
    except NoTextError as error:
        bare = os.path.basename(bare_name(path))
        tells_nothing = "." not in bare or path.lower().endswith(_TABLES)
        if not is_file and (is_sure or (error.kind.lost and tells_nothing)):
            raise
        return error.kind.reason
    except InputError:
        if is_sure:
            raise
        return _NO_DOCUMENTS
    if is_sure:
        return source
    if source.format == "text" or not source.size:
        return _OTHER_TEXT if source.size else _EMPTY
    return source if input_format == "auto" else replace(source, format=input_format)


def log_passed_over(where: str, reasons: Iterable[tuple[str, str]], input_format: str) -> None:
    """Warn how many files were skipped; ``reasons`` are pairs of a reason and a name."""
    reasons = list(reasons)
    if not reasons:
        return
    there = {reason for reason, _ in reasons}
    advice = ""
    if ARCHIVE.reason in there:
        advice = "; archives are read only if you name them, or a pattern that matches them"
    elif _OTHER_TEXT in there and input_format == "auto":
        advice = f"; {option('input_format', 'file')} reads all text, each file as a document"
    _log.warning(Remark(f"{where}: {_passed_over(where, reasons)}{advice}"))


def _passed_over(where: str, reasons: Sequence[tuple[str, str]]) -> str:
    names: dict[str, list[str]] = {}
    for reason, name in reasons:
        names.setdefault(reason, []).append(name)
    below = where.rstrip("/") + "/"
    counts = [
        f"{reason}: {len(of_reason)} (such as {of_reason[0].removeprefix(below)})"
        for reason, of_reason in names.items()
    ]
    return f"{counted(len(reasons), 'file')} skipped ({', '.join(counts)})"


def no_documents(folder: str, reasons: Sequence[tuple[str, str]]) -> InputError:
    """The error for a folder in which all files are skipped."""
    seen = ""
    if reasons and all(reason.startswith("with ") for reason, _ in reasons):
        seen = f"; {_passed_over(folder, reasons)}: extract their text first"
    elif reasons:
        seen = (
            f"; {_passed_over(folder, reasons)}: {option('input_format', 'file')} makes each a "
            "document"
        )
    return InputError(f"{folder}: no document files in this folder{seen}")


def files_below(folder: str, passed_over: list[str] | None = None) -> list[str]:
    """The files below a folder, by name, without hidden ones and those of unfinished runs.
    InputError.

    The paths that are left out, hidden folders among them, are added to ``passed_over``.
    """
    return _sorted(path for _, files in _folders(folder, passed_over) for path in files)


def matching(pattern: str) -> list[str]:
    """The paths that match a pattern, by name; ``**`` stands for any number of folders.
    InputError.
    """
    components = pattern.split("/")
    if _DEEP not in components:
        return sorted(glob.glob(pattern), key=os.fsencode)
    at = components.index(_DEEP)
    base, rest = "/".join(components[:at]), "/".join(components[at + 1 :])
    if at == 1 and not base:  # the pattern begins at the root
        base = "/"
    paths: set[str] = set()
    for folder in [base] if not has_magic(base) else matching(base):
        if os.path.isdir(folder or "."):
            paths.update(_matching_below(folder, rest))
    return sorted(paths, key=os.fsencode)


def _matching_below(folder: str, rest: str) -> list[str]:
    if rest in ("", _DEEP):
        return files_below(folder)
    paths = []
    for below, _ in _folders(folder):
        paths += matching(os.path.join(glob.escape(below), rest))
    return [path for path in paths if not os.path.isdir(path)]


def _folders(root: str, passed_over: list[str] | None = None) -> list[tuple[str, list[str]]]:
    """All folders from ``root`` down, each with the paths of its files.

    Links to folders are followed, but each folder is entered once: under its own name if it is
    below ``root``, else under the first link's. A warning names further links to it.
    """
    entered: dict[tuple[int, int], str] = {}
    listing = []
    again = []
    # Follow links after all folders, so that folders are entered under their own names.
    to_enter, links = deque([root]), deque[str]()
    while to_enter or links:
        folder = to_enter.popleft() if to_enter else links.popleft()
        try:
            status = os.stat(folder or ".")
            identity = status.st_dev, status.st_ino
            if identity in entered:
                again.append((folder, entered[identity]))
                continue
            entered[identity] = folder
            files = []
            for entry in sorted(os.scandir(folder or "."), key=lambda entry: entry.name):
                path = os.path.join(folder, entry.name)
                if entry.name.startswith(".") or entry.name.endswith(".unfinished"):
                    if passed_over is not None:
                        passed_over.append(path)
                    continue
                if not _is_folder(entry):
                    files.append(path)
                elif entry.is_symlink():
                    links.append(path)
                else:
                    to_enter.append(path)
        except OSError as error:
            raise InputError(f"{printable(folder)}: {error.strerror}") from error
        listing.append((folder, files))
    if again:
        link, other = again[0]
        more = f", and so do {len(again) - 1} more" if len(again) > 1 else ""
        _log.warning(
            "%s links to the folder %s: its files are read only once%s",
            *(printable(link), printable(other or "."), more),
        )
    return listing


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: opening it will fail
        return False


def _sorted(paths: Iterable[str]) -> list[str]:
    """The paths, sorted by the names of their folders, and then by those of the files."""
    return sorted(paths, key=lambda path: os.fsencode(path).split(os.fsencode(os.sep)))


_OBJECTS_AT_ONCE = 64


def _objects(url: str, read_as: _ReadAs) -> Iterator[Source]:
    """The sources for a URL: one object, those of a folder, or those of a pattern. InputError."""
    for folder, listed in storage.find(url):
        if folder:
            yield from _documents(folder, listed, read_as)
            continue
        passed_over = [(why_leftover(one.url, url), storage.shown(one.url)) for one in listed]
        named = [one for one, (why, _) in zip(listed, passed_over, strict=True) if not why]
        yield from (_object_source(one, head, read_as) for one, head in _with_heads(named))
        skipped = filter(itemgetter(0), passed_over)
        log_passed_over(storage.shown(url), skipped, read_as.input_format)


def _documents(
    folder: str, listed: list[storage.StoredObject], read_as: _ReadAs
) -> Iterator[Source]:
    """The sources for the objects of a folder, chosen like the files of a local folder."""
    input_format = read_as.input_format
    names = {one.url for one in listed}
    about = {one.url: why_sidecar(one.url, input_format, names.__contains__) for one in listed}
    reasons = [(reason, storage.shown(url)) for url, reason in sorted(about.items()) if reason]
    for one, head in _with_heads(one for one in listed if not about[one.url]):
        source = _source_or_reason(one.url, read_as, partial(_object_source, one, head))
        if isinstance(source, str):
            reasons.append((source, storage.shown(one.url)))
        else:
            yield source
    if len(reasons) == len(listed):
        raise no_documents(storage.shown(folder), reasons)
    log_passed_over(storage.shown(folder), reasons, input_format)


def _with_heads(
    listed: Iterable[storage.StoredObject],
) -> Iterator[tuple[storage.StoredObject, bytes]]:
    rest = iter(listed)
    while batch := list(islice(rest, _OBJECTS_AT_ONCE)):
        yield from zip(batch, storage.heads(batch, HEAD_BYTES), strict=True)


def _object_source(one: storage.StoredObject, head: bytes, read_as: _ReadAs) -> Source:
    name = storage.shown(one.url)
    source = Source(name, one.url, "", "", one.size, one.modified_ns, one.etag)
    source = read_as.detected(source, head)
    if source.format == "arrow":
        raise InputError(
            f"{name}: Arrow files are mapped, so they must be on a disk: copy it to one, or "
            "convert it to parquet"
        )
    return source


_FIRST = 16  # files checked one by one, to time it
_SLOW_SECONDS = 0.001  # per file, as on NFS; disks take a twentieth
_THREADS = 32
_AT_ONCE = 4096  # results in memory
_here = threading.local()

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_concurrently(look: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The result of ``look`` for each item, in order; raises the first item's error.

    If ``look`` is slow, several threads work at the same time. They end after each batch of items,
    so that the process may fork afterwards. Nested calls work one by one, which limits the number
    of threads.
    """
    rest = iter(items)
    began = time.perf_counter()
    first = [look(item) for item in islice(rest, _FIRST)]
    is_slow = time.perf_counter() - began > _SLOW_SECONDS * len(first)
    yield from first
    if not is_slow or getattr(_here, "looks", False):
        yield from map(look, rest)
        return
    from concurrent.futures import ThreadPoolExecutor  # loaded only for a slow file system

    while batch := list(islice(rest, _AT_ONCE)):
        try:
            with ThreadPoolExecutor(
                _THREADS, initializer=setattr, initargs=(_here, "looks", True)
            ) as threads:
                results = list(threads.map(look, batch))
        except RuntimeError:  # no more threads
            results = list(map(look, batch))
        yield from results


def fingerprints(sources: Iterable[Source]) -> list[str]:
    """The fingerprint of each source. InputError."""
    return list(map_concurrently(lambda source: source.fingerprint(), sources))


HUB_SCHEME = "hf://"
_LOOKED_AT = 16  # text files that are looked at, for all
_hub = threading.Lock()  # the settings of ``datasets`` are shared by all threads
_HIDDEN = "hidden or unfinished"
_TO_NOTHING = "links to nothing"


def discover(
    inputs: Sequence[str],
    *,
    input_format: str = "auto",
    hf_split: str | None = None,
    json_path: str | None = None,
    pipes: bool = True,
) -> list[Source]:
    """The input files, in the order of the inputs; those of a folder or pattern sorted.

    An input is a file, a folder (read recursively), a pattern (``**`` enters folders), a comma list
    of these, ``@list.txt`` (a path a line), ``-`` (the standard input), a folder that ``datasets``
    saved, a Hugging Face dataset (``hf://name[:split]``; only this asks the hub), or a URL of one
    of these on a store. A file found under several names, through links, is listed once, with a
    warning; but it is listed as often as it, its folder or its pattern is repeated in the inputs.
    ``input_format`` is one of FORMATS, or ``auto``: by content. ``hf_split`` is the split of
    Hugging Face datasets named without one. With ``json_path``, a key such as ``a.b``, files are
    JSON with their records in the array under this key. InputError if an input does not exist or
    cannot be read, if it has several splits and none is named, or if no document file is found;
    UsageError for a pipe if ``pipes`` is false, before it is opened.
    """
    if input_format not in ("auto", *FORMATS):
        raise UsageError(
            f"{option('input_format')} is {', '.join(FORMATS)} or auto, not {input_format!r}"
        )
    if json_path is not None and (
        input_format not in ("auto", "json") or not all(json_path.split("."))
    ):
        raise UsageError(
            f"{option('json_path', json_path)}: expected a key such as a or a.b, with "
            f"{option('input_format')} auto or json, not {input_format!r}"
        )
    if isinstance(inputs, (str, bytes)):
        raise UsageError("inputs must be a list of names, not one string")
    paths = [path for listed in map_concurrently(_paths, map(os.fspath, inputs)) for path in listed]
    read_as = _ReadAs(input_format, hf_split, json_path or "", pipes)
    identified = map_concurrently(lambda path: _identified(_path(path, read_as)), paths)
    by_path = [(path, _once(sources)) for path, sources in zip(paths, identified, strict=True)]
    if not any(sources for _, sources in by_path):
        raise InputError("no input: name files, folders, patterns, or - for the standard input")
    listed = _as_often_as_named(by_path)
    if hf_split is not None and not any(source.format == "arrow" for source in listed):
        raise UsageError(f"{option('hf_split', hf_split)}: no input is a Hugging Face dataset")
    if input_format == "auto":
        _refuse_other_text(listed)
        _warn_of_unpacked(listed)
        _warn_of_text(listed)
    _warn_of_both(listed)
    return listed


def _refuse_other_text(sources: Sequence[Source]) -> None:
    """Refuse text with an ending that is not one of documents, as in folders. InputError."""
    names = [
        one.name
        for one in sources
        if one.format == "text" and not one.is_pipe and _is_of_other_text(bare_name(one.path))
    ]
    if names:
        more = f" and {counted(len(names) - 1, 'other file')}" if len(names) > 1 else ""
        raise InputError(
            f"{names[0]}{more}: {_OTHER_TEXT}: make each file a document with "
            f"{option('input_format', 'file')}, or each line with {option('input_format', 'text')}"
        )


def _is_of_other_text(name: str) -> bool:
    return bool(os.path.splitext(name)[1]) and not has_document_name(name)


def _warn_of_unpacked(sources: Sequence[Source]) -> None:
    """Warn of JSON files whose names say that they are compressed."""
    json = [one for one in sources if one.format in ("json", "jsonl")]
    _warn_of_names(
        [one.name for one in json if promised(one.name, is_packed=bool(one.compression))],
        "read as JSON, which it is, and not as its name says; a browser may have unpacked it",
    )


def _warn_of_both(sources: Sequence[Source]) -> None:
    """Warn of files beside their compressed ones, as decompressors leave them."""
    there = {one.path.lower() for one in sources}
    packed = [one for one in sources if one.path.lower() != bare_name(one.path)]
    _warn_of_names(
        [one.name for one in packed if bare_name(one.path) in there],
        "read beside the file that has this name without the compression; if one was made from "
        "the other, leave one of them out: each document is there twice",
    )


def _warn_of_names(names: Sequence[str], what: str) -> None:
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        _log.warning(Remark(f"{names[0]}{more}: {what}"))


def _warn_of_text(sources: Sequence[Source]) -> None:
    """Warn that each line of text becomes a document, if it looks like books, code, JSON or web
    pages.
    """
    texts = [one for one in sources if one.format == "text" and not one.is_pipe]
    step = max(len(texts) // _LOOKED_AT, 1)
    heads = list(map_concurrently(lambda one: head_of(one, one.compression), texts[::step]))
    as_text = option("input_format", "text")
    for is_other, what in (
        (is_markup, f"markup, quotes and all; where that is meant, {as_text} says so"),
        (
            is_json,
            f"names of keys and all; {option('input_format', 'jsonl')} reads it as JSON, which it "
            f"looks like, and {as_text} confirms that each line is a document",
        ),
        (lambda head: b"\r\n" in head, "with the \\r of \\r\\n, which stays in each"),
    ):
        names = [one.name for one, head in zip(texts[::step], heads, strict=True) if is_other(head)]
        _warn_of_names(names, f"read as plain text, one document per line, {what}")
    running = [is_running_text(head) and not is_markup(head) for head in heads]
    if 2 * sum(running) > len(running):
        others = f" and {counted(len(texts) - 1, 'other file')}" if len(texts) > 1 else ""
        _log.warning(
            Remark(
                f"{texts[0].name}{others}: each line becomes a document, though "
                f"{'they look' if others else 'it looks'} like running text, with paragraphs; "
                f"{option('input_format', 'file')} makes each file one document, "
                f"{option('input_format', 'text')} confirms that each line is one"
            )
        )


class _ReadAs(NamedTuple):
    """How the inputs are to be read."""

    input_format: str
    hf_split: str | None
    json_path: str
    pipes: bool
    in_folder: bool = False  # then an archive is no document

    def detected(self, source: Source, head: bytes | None) -> Source:
        """A source with its format and compression; ``head`` are its first bytes, if known."""
        source = replace(source, json_path=self.json_path)
        format_, compression = detect(
            source, self.input_format, head, opens_archives=not self.in_folder
        )
        return replace(source, format=format_, compression=compression)


def _paths(text: str) -> list[str]:
    """The paths for an input: in a list file, or in a comma list.

    If the whole text is the name of a file, that is the only path.
    """
    if os.path.lexists(text) or text == STDIN:
        return [text]
    if text.startswith("@"):
        return _listed(text[1:])
    paths = list(filter(None, map(str.strip, text.split(","))))
    if not paths:
        raise InputError(f"an input is empty: {text!r}")
    return paths


def _identified(sources: Iterable[Source]) -> list[tuple[object, Source]]:
    """Pairs of an identity, equal for all names of a file, and its source."""
    listed = list(sources)
    return list(zip(map_concurrently(_identity, listed), listed, strict=True))


def _once(listed: Sequence[tuple[object, Source]]) -> dict[object, Source]:
    """The sources that one path leads to, by their identity, each file once, in order.

    A file with several names is listed under one that is not a link, if possible; a warning lists
    the others.
    """
    kept: dict[object, Source] = {}
    for identity, source in listed:
        other = kept.get(identity)
        if other is None or (_is_linked(other) and not _is_linked(source)):
            kept[identity] = source
    _warn([(source, kept[identity]) for identity, source in listed])
    return {identity: source for identity, source in listed if kept[identity] is source}


def _as_often_as_named(by_path: list[tuple[str, dict[object, Source]]]) -> list[Source]:
    """The sources of all paths, in order.

    A file that is named repeatedly, itself or by its folder or pattern, is listed each time; any
    other is listed once, where it is found first.
    """
    repeated = Counter(path for path, _ in by_path)
    named = Counter(
        identity
        for path, sources in by_path
        for identity, source in sources.items()
        if repeated[path] > 1 or source.path == path
    )
    kept: dict[object, Source] = {}
    listed, passed_over = [], []
    for path, sources in by_path:
        for identity, source in sources.items():
            is_named = repeated[path] > 1 or source.path == path
            if is_named if named[identity] > 1 else identity not in kept:
                listed.append(source)
                kept.setdefault(identity, source)
            else:
                passed_over.append((source, kept.get(identity, source)))
    _warn(passed_over)
    return listed


def _identity(source: Source) -> object:
    """A value that is equal for all names of a file; each pipe has its own."""
    if source.is_pipe:
        return id(source)
    if source.is_remote:
        return source.path
    status = _stat(source.path)
    return status.st_dev, status.st_ino


def _is_linked(source: Source) -> bool:
    return not source.is_remote and os.path.realpath(source.path) != os.path.abspath(source.path)


def _warn(pairs: list[tuple[Source, Source]]) -> None:
    """Warn of sources that are the same file as others."""
    same = [(source, other) for source, other in pairs if source is not other]
    if same:
        source, other = same[0]
        more = f", and so are {len(same) - 1} more" if len(same) > 1 else ""
        _log.warning(
            "%s is the same file as %s: it is read only once%s", source.name, other.name, more
        )


def _listed(path: str) -> list[str]:
    try:
        with open_object(named(path)) if is_url(path) else open(path, "rb") as file:
            lines = [os.fsdecode(line.strip()) for line in file]
    except OSError as error:
        raise InputError(f"@{shown(path)}: {error.strerror}") from error
    paths = [line for line in lines if line and not line.startswith("#")]
    if not paths:
        raise InputError(f"@{shown(path)}: the list names no file")
    return paths


def _path(path: str, read_as: _ReadAs) -> Iterator[Source]:
    if path == STDIN:
        yield _named(path, read_as)
    elif is_url(path):
        yield from _objects(path, read_as)
    elif path.startswith(HUB_SCHEME):
        with _hub:
            name, files = hub_files(path.removeprefix(HUB_SCHEME), read_as.hf_split)
        yield from _arrow_files(name, files)
    elif os.path.isdir(path):
        yield from _folder(path, read_as)
    elif os.path.lexists(path):
        yield _named(path, read_as)
    elif has_magic(path):
        yield from _pattern(path, read_as)
    else:
        raise InputError(no_such(path))


def _named(path: str, read_as: _ReadAs) -> Source:
    if not read_as.pipes and is_pipe(path):
        name = "<stdin>" if path == STDIN else printable(path)
        raise UsageError(f"{name} can be read only once: put it in a file first")
    return _source(path, read_as)


def no_such(path: str) -> str:
    """The message for a missing input."""
    if len(path) > _LONGEST_NAME or "\n" in path:
        return f"{brief(path)}: no such file or folder"
    return f"{printable(path)}: no such file or folder{_hint(path)}"


def _hint(path: str) -> str:
    if is_dataset(path):
        return "; it is a dataset, whose documents are tokens already: tokpack convert or merge it"
    if not HUB_NAME.fullmatch(path) or has_document_name(path):
        return did_you_mean(path)
    near = "" if "/" in path else did_you_mean(path)
    return near or f"; a Hugging Face dataset is named {HUB_SCHEME}{path}"


def _pattern(pattern: str, read_as: _ReadAs) -> Iterator[Source]:
    paths = matching(pattern)
    if not paths:
        raise InputError(f"{printable(pattern)}: no file matches this pattern")
    outcomes = list(map_concurrently(lambda path: _matching(path, pattern, read_as), paths))
    reasons = _reasons(outcomes, paths)
    if len(reasons) == len(outcomes):
        raise no_documents(printable(pattern), reasons)
    log_passed_over(printable(pattern), reasons, read_as.input_format)
    for sources in outcomes:
        if not isinstance(sources, str):
            yield from sources


def _reasons(outcomes: Sequence[object], paths: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of a reason and a name for the paths that are skipped."""
    pairs = zip(outcomes, paths, strict=True)
    return [(reason, printable(path)) for reason, path in pairs if isinstance(reason, str)]


def _matching(path: str, pattern: str, read_as: _ReadAs) -> list[Source] | str:
    """The sources that match a pattern, or the reason to skip the path."""
    if (leftover := why_leftover(path, pattern)) and not os.path.isdir(path):
        return leftover
    if _leads_to_nothing(path, read_as.input_format):
        return _TO_NOTHING
    try:
        return list(_path(path, read_as))
    except NoTextError as error:
        if read_as.input_format != "file":
            raise
        return error.kind.reason


def _leads_to_nothing(path: str, input_format: str) -> bool:
    """Whether a path is a dangling link that may be skipped.

    InputError if by its name it had documents, which would be missing.
    """
    try:
        os.stat(path)
    except OSError as error:
        if not os.path.islink(path):
            return False
        if input_format != "file" and has_document_name(path):
            raise InputError(
                f"{printable(path)}: {error.strerror}: it is a link to "
                f"{printable(os.readlink(path))}; restore that, or remove the link"
            ) from error
        return True
    return False


def _folder(folder: str, read_as: _ReadAs) -> Iterator[Source]:
    if is_saved_dataset(folder):
        yield from _arrow_files(*saved_files(folder, read_as.hf_split))
        return
    hidden: list[str] = []
    paths = files_below(folder, hidden)
    outcomes = list(map_concurrently(lambda path: _document_file(path, read_as), paths))
    reasons = _reasons(outcomes, paths)
    passed_over = [*reasons, *((_HIDDEN, printable(path)) for path in hidden)]
    if len(reasons) == len(outcomes):
        raise no_documents(printable(folder), passed_over)
    log_passed_over(printable(folder), passed_over, read_as.input_format)
    yield from (source for source in outcomes if not isinstance(source, str))


def _document_file(path: str, read_as: _ReadAs) -> Source | str:
    """The source of a file in a folder, or the reason to skip it, for its name or its content."""
    input_format = read_as.input_format
    reason = why_sidecar(path, input_format, os.path.exists)
    if reason:
        return reason
    if _leads_to_nothing(path, input_format):
        return _TO_NOTHING
    is_named = input_format != "file" and has_document_name(path)
    if not is_named and not stat.S_ISREG(_stat(path).st_mode):
        return "pipes or devices"
    return _source_or_reason(path, read_as, partial(_source, path))


def _source(path: str, read_as: _ReadAs) -> Source:
    if path == STDIN:
        source = Source("<stdin>", path, "", "", 0, 0)
    else:
        status = _stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise InputError(f"{printable(path)}: neither a file nor a pipe")
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        source = Source(printable(path), path, "", "", size, status.st_mtime_ns)
    head = None if source.is_pipe else head_of(source, "")
    source = read_as.detected(source, head)
    if head is not None:
        return replace(source, seen=source.fingerprint_of(head))
    if source.format in ("parquet", "arrow"):
        raise InputError(
            f"{source.name}: {source.format} cannot be read from a pipe; give the file"
        )
    return source


def _arrow_files(name: str, paths: list[str]) -> Iterator[Source]:
    for path in paths:
        status = _stat(path)
        shown = f"{name}/{printable(os.path.basename(path))}"
        source = Source(shown, path, "arrow", "", status.st_size, status.st_mtime_ns)
        detect(source, "arrow")  # refuses pointers to files
        yield source


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise InputError(f"{printable(path)}: {error.strerror}") from error
