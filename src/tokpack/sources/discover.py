"""From what the user wrote to the list of input files."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import InputError, UsageError, option
from tokpack.files.mistaken import is_dataset
from tokpack.quantities import counted
from tokpack.sources.base import FORMATS, STDIN, Source, is_pipe, printable
from tokpack.sources.compression import bare_name
from tokpack.sources.detect import (
    NoTextError,
    decompressed_head,
    detect,
    first_bytes,
    is_markup,
    is_running_text,
    promised,
)
from tokpack.sources.folders import (
    files_below,
    has_document_name,
    has_magic,
    log_passed_over,
    matching,
    no_documents,
    source_or_reason,
    why_leftover,
    why_sidecar,
)
from tokpack.sources.hub import HUB_NAME, hub_files, is_saved_dataset, saved_files
from tokpack.sources.looks import map_concurrently
from tokpack.sources.objects import objects
from tokpack.stores import is_url, named, open_object, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_log = logging.getLogger(__name__)
HUB_SCHEME = "hf://"
_LOOKED_AT = 16  # files of text that stand for all
_hub = threading.Lock()  # ``datasets`` has settings that hold for all threads
_HIDDEN = "that are hidden or unfinished"
_TO_NOTHING = "that are links to nothing"
_MARKUP = (".html", ".htm", ".xhtml", ".xml")


def discover(
    inputs: Sequence[str],
    *,
    input_format: str = "auto",
    hf_split: str | None = None,
    json_path: str | None = None,
    pipes: bool = True,
) -> list[Source]:
    """List the input files, in the order of the inputs; those of a folder or pattern sorted.

    An input is a file, a folder (read recursively), a pattern (``**`` goes into folders), a comma
    list of these, ``@list.txt`` (a path a line), ``-`` (the standard input), a folder that
    ``datasets`` saved, a Hugging Face dataset (``hf://name[:split]``; only that asks the hub), or a
    URL of one of these on a store.
    A file that is found under several names, through links, is listed once, and a warning says so;
    but as often as the inputs name it, or repeat the folder or pattern that it is in.
    ``input_format`` is one of FORMATS, or ``auto``: by content. ``hf_split`` is the split of
    Hugging Face datasets that name none; ``json_path`` is a key, ``a.b``: files are JSON, and their
    records are the elements of the array under it. InputError where an input does not exist, cannot
    be read, has several splits of which none is named, or no document file is found; UsageError for
    a pipe where ``pipes`` are not wanted, before it is opened.
    """
    if input_format not in ("auto", *FORMATS):
        raise UsageError(f"--input-format is {', '.join(FORMATS)} or auto, not {input_format!r}")
    if json_path is not None and (
        input_format not in ("auto", "json") or not all(json_path.split("."))
    ):
        raise UsageError(
            f"{option('json_path', json_path)} is a key of JSON, a, or a.b for b inside of a; "
            f"{option('input_format', input_format)} goes with it where that is json"
        )
    if isinstance(inputs, (str, bytes)):
        raise UsageError("inputs is a list of names, not one string")
    paths = [path for listed in map_concurrently(_paths, map(os.fspath, inputs)) for path in listed]
    read_as = _ReadAs(input_format, hf_split, json_path or "", pipes)
    identified = map_concurrently(lambda path: _identified(_path(path, read_as)), paths)
    by_path = [(path, _once(sources)) for path, sources in zip(paths, identified, strict=True)]
    if not any(sources for _, sources in by_path):
        raise InputError("no input: name files, folders, patterns, or - for the standard input")
    listed = _as_often_as_named(by_path)
    if hf_split is not None and not any(source.format == "arrow" for source in listed):
        raise UsageError(f"--hf-split {hf_split}: no input is a Hugging Face dataset")
    if input_format == "auto":
        _warn_of_unpacked(listed)
        _warn_of_text(listed)
    return listed


def _warn_of_unpacked(sources: Sequence[Source]) -> None:
    """Say which files are JSON though their names say that they are not."""
    json = [one for one in sources if one.format in ("json", "jsonl")]
    _warn_of_names(
        [one.name for one in json if promised(one.name, is_packed=bool(one.compression))],
        "read as JSON, which it is, and not as its name says; a browser may have unpacked it",
    )


def _warn_of_names(names: Sequence[str], what: str) -> None:
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        _log.warning("%s%s: %s", names[0], more, what)


def _warn_of_text(sources: Sequence[Source]) -> None:
    """Say that each line of text is a document, where it looks like books or code, or is a page."""
    texts = [one for one in sources if one.format == "text" and not one.is_pipe]
    marked = [one for one in texts if bare_name(one.path).endswith(_MARKUP)]
    texts = [one for one in texts if not bare_name(one.path).endswith(_MARKUP)]
    step = max(len(texts) // _LOOKED_AT, 1)
    heads = list(map_concurrently(decompressed_head, texts[::step]))
    pages = [one for one, head in zip(texts[::step], heads, strict=True) if is_markup(head)]
    _warn_of_names(
        [one.name for one in (*marked, *pages)],
        "read as plain text, a document a line, markup, quotes and all; where that is meant, "
        "--input-format text says so",
    )
    running = [is_running_text(head) and not is_markup(head) for head in heads]
    if 2 * sum(running) > len(running):
        others = f" and {counted(len(texts) - 1, 'other file')}" if len(texts) > 1 else ""
        _log.warning(
            "%s%s: each line is a document, though %s like running text, with paragraphs; "
            "--input-format file makes each file one document, and --input-format text says that "
            "lines are meant",
            *(texts[0].name, others, "they look" if others else "it looks"),
        )


class _ReadAs(NamedTuple):
    """How the inputs are to be read."""

    input_format: str
    hf_split: str | None
    json_path: str
    pipes: bool


def _paths(text: str) -> list[str]:
    if text.startswith("@") and not os.path.lexists(text):
        return _listed(text[1:])
    return _comma_list(text)


def _identified(sources: Iterable[Source]) -> list[tuple[object, Source]]:
    """The sources, each with what is the same for all names of its file."""
    listed = list(sources)
    return list(zip(map_concurrently(_identity, listed), listed, strict=True))


def _once(listed: Sequence[tuple[object, Source]]) -> dict[object, Source]:
    """The sources that one path leads to, by their identity, each file once, in order.

    A file with several names gets one that is no link, if there is one; a warning tells of the
    other names.
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

    A file that is named several times, itself or by a folder or pattern that is given again, is
    listed each such time; any other once, where it is found first.
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
    """What is the same for all names of one file; a pipe is like no other."""
    if source.is_pipe:
        return id(source)
    if source.is_remote:
        return source.path
    status = _stat(source.path)
    return status.st_dev, status.st_ino


def _is_linked(source: Source) -> bool:
    return not source.is_remote and os.path.realpath(source.path) != os.path.abspath(source.path)


def _warn(pairs: list[tuple[Source, Source]]) -> None:
    """Say which sources are others under another name."""
    same = [(source, other) for source, other in pairs if source is not other]
    if same:
        source, other = same[0]
        more = f", and so are {len(same) - 1} more" if len(same) > 1 else ""
        _log.warning("%s is the file %s, and is read once%s", source.name, other.name, more)


def _comma_list(text: str) -> list[str]:
    """The paths of a comma list; a file whose own name has commas or blanks is itself."""
    if os.path.lexists(text) or text == STDIN:
        return [text]
    paths = [path.strip() for path in text.split(",")]
    if not all(paths):
        paths = [path for path in paths if path]
    if not paths:
        raise InputError(f"an input is empty: {text!r}")
    return paths


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
        yield from objects(path, read_as.input_format, read_as.json_path)
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
        raise InputError(f"{printable(path)}: no such file or folder{_hint(path)}")


def _named(path: str, read_as: _ReadAs) -> Source:
    if not read_as.pipes and is_pipe(path):
        name = "<stdin>" if path == STDIN else printable(path)
        raise UsageError(f"{name} can be read only once: put it in a file first")
    return _source(path, read_as)


def _hint(path: str) -> str:
    if is_dataset(path):
        return "; it is a dataset, whose documents are tokens already: tokpack convert or merge it"
    if not HUB_NAME.fullmatch(path) or has_document_name(path):
        return ""
    return f"; a Hugging Face dataset is named {HUB_SCHEME}{path}"


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
    """Of the paths that are passed over, why, and the name."""
    pairs = zip(outcomes, paths, strict=True)
    return [(reason, printable(path)) for reason, path in pairs if isinstance(reason, str)]


def _matching(path: str, pattern: str, read_as: _ReadAs) -> list[Source] | str:
    """The sources of what a pattern matches; or why it is passed over."""
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
    """Whether what is found is a link to nothing, which may be passed over.

    InputError where its name says that it holds documents: they would be missing.
    """
    if os.path.exists(path) or not os.path.islink(path):
        return False
    if input_format != "file" and has_document_name(path):
        raise InputError(
            f"{printable(path)}: {_why_no_status(path)}: it is a link to "
            f"{printable(os.readlink(path))}; put that back, or remove the link"
        )
    return True


def _why_no_status(path: str) -> str:
    try:
        os.stat(path)
    except OSError as error:
        return error.strerror or str(error)
    return "it is there now"


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
    """A file of a folder as a source; or why it is passed over, for its name or its content."""
    input_format = read_as.input_format
    reason = why_sidecar(path, input_format, os.path.exists)
    if reason:
        return reason
    if _leads_to_nothing(path, input_format):
        return _TO_NOTHING
    is_named = input_format != "file" and has_document_name(path)
    if not is_named and not stat.S_ISREG(_stat(path).st_mode):
        return "that are pipes or devices"
    return source_or_reason(
        *(path, input_format),
        lambda format_: _source(
            path, read_as._replace(input_format=format_), opens_archives=format_ != "file"
        ),
    )


def _source(path: str, read_as: _ReadAs, *, opens_archives: bool = True) -> Source:
    if path == STDIN:
        source = Source("<stdin>", path, "", "", 0, 0)
    else:
        status = _stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise InputError(f"{printable(path)}: neither a file nor a pipe")
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        source = Source(printable(path), path, "", "", size, status.st_mtime_ns)
    source = replace(source, json_path=read_as.json_path)
    head = None if source.is_pipe else first_bytes(source)
    format_, compression = detect(source, read_as.input_format, head, opens_archives=opens_archives)
    if format_ in ("parquet", "arrow") and head is None:
        raise InputError(f"{source.name}: {format_} cannot be read from a pipe; give the file")
    seen = "" if head is None else source.fingerprint_of(head)
    return replace(source, format=format_, compression=compression, seen=seen)


def _arrow_files(name: str, paths: list[str]) -> Iterator[Source]:
    for path in paths:
        status = _stat(path)
        shown = f"{name}/{printable(os.path.basename(path))}"
        source = Source(shown, path, "arrow", "", status.st_size, status.st_mtime_ns)
        detect(source, "arrow")  # refuses what only stands for the file
        yield source


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise InputError(f"{printable(path)}: {error.strerror}") from error
