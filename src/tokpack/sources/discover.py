"""From what the user wrote to the list of input files."""

from __future__ import annotations

import glob
import os
import re
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.errors import InputError, UsageError
from tokpack.sources.base import FORMATS, STDIN, Source, printable
from tokpack.sources.compression import bare_name
from tokpack.sources.detect import DOCUMENT_SUFFIXES, detect
from tokpack.sources.hub import hub_files, is_saved_dataset, looks_like_hub_name, saved_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HUB_SCHEME = "hf://"
_SIDECAR = re.compile(
    r"(readme|license|licence|changelog|sha\d+sums?|md5sums?|_success)\b.*"
    r"|.*\.(md|rst|log|ya?ml|toml|sha\d+(sum)?|md5(sum)?|sig|asc|rejects\.jsonl)"
    r"|dataset_(infos?|dict)\.json|state\.json",
    re.IGNORECASE,
)


def discover(inputs: Sequence[str], *, input_format: str = "auto") -> list[Source]:
    """List the input files, in the order of the inputs; those of a folder or pattern sorted.

    An input is a file, a folder (read recursively), a pattern (``**`` goes into folders), a comma
    list of these, ``@list.txt`` (a path a line), ``-`` (the standard input), a folder that
    ``datasets`` saved, or a Hugging Face dataset (``hf://name[:split]`` or ``owner/name``).
    ``input_format`` is one of FORMATS, or ``auto``: by content. InputError where an input does not
    exist, cannot be read, or no document file is found.
    """
    if input_format not in ("auto", *FORMATS):
        raise UsageError(f"--input-format is {', '.join(FORMATS)} or auto, not {input_format!r}")
    if isinstance(inputs, (str, bytes)):
        raise UsageError("inputs is a list of names, not one string")
    sources = [source for one in inputs for source in _input(os.fspath(one), input_format)]
    if not sources:
        raise InputError("no input: name files, folders, patterns, or - for the standard input")
    return sources


def _input(text: str, input_format: str) -> Iterator[Source]:
    if text.startswith("@") and not os.path.lexists(text):
        for path in _listed(text[1:]):
            yield from _path(path, input_format)
        return
    for path in _comma_list(text):
        yield from _path(path, input_format)


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
        with open(path, "rb") as file:
            lines = [os.fsdecode(line.strip()) for line in file]
    except OSError as error:
        raise InputError(f"@{printable(path)}: {error.strerror}") from error
    paths = [line for line in lines if line and not line.startswith("#")]
    if not paths:
        raise InputError(f"@{printable(path)}: the list names no file")
    return paths


def _path(path: str, input_format: str) -> Iterator[Source]:
    if path == STDIN:
        yield _source(path, input_format)
    elif path.startswith(HUB_SCHEME):
        yield from _arrow_files(*hub_files(path.removeprefix(HUB_SCHEME)))
    elif os.path.isdir(path):
        yield from _folder(path, input_format)
    elif os.path.lexists(path):
        yield _source(path, input_format)
    elif glob.has_magic(path):
        yield from _pattern(path, input_format)
    elif looks_like_hub_name(path) and not bare_name(path).endswith(DOCUMENT_SUFFIXES):
        yield from _arrow_files(*hub_files(path))
    else:
        raise InputError(f"{printable(path)}: no such file or folder")


def _pattern(pattern: str, input_format: str) -> Iterator[Source]:
    paths = sorted(glob.glob(pattern, recursive=True), key=os.fsencode)
    if "**" in pattern:  # which also gives the folders of the files that it gives
        paths = [path for path in paths if not os.path.isdir(path)]
    if not paths:
        raise InputError(f"{printable(pattern)}: no file matches this pattern")
    for path in paths:
        yield from _path(path, input_format)


def _folder(folder: str, input_format: str) -> Iterator[Source]:
    if is_saved_dataset(folder):
        yield from _arrow_files(*saved_files(folder))
        return
    found = 0
    passed_over: list[str] = []
    for path in _files_below(folder, set()):
        source = None if _is_sidecar(path) else _document_file(path, input_format)
        if source is None:
            passed_over.append(path)
        else:
            found += 1
            yield source
    if not found:
        seen = ""
        if passed_over:
            seen = (
                f"; there are {len(passed_over)} other files, such as {printable(passed_over[0])}:"
                " name them one by one if they are documents"
            )
        raise InputError(f"{printable(folder)}: no document files in this folder{seen}")


def _files_below(folder: str, above: set[tuple[int, int]]) -> Iterator[str]:
    """Files below a folder, by name; not hidden ones, nor what unfinished runs left."""
    try:
        status = os.stat(folder)
        entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise InputError(f"{printable(folder)}: {error.strerror}") from error
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a symbolic link to a folder that it is in
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name.endswith(".unfinished"):
            continue
        if entry.is_dir():
            yield from _files_below(entry.path, above | {identity})
        else:
            yield entry.path


def _is_sidecar(path: str) -> bool:
    """Whether a file beside documents is about them; also a manifest beside its dataset."""
    stem, suffix = os.path.splitext(path)
    if suffix == ".json" and os.path.exists(stem + ".idx"):
        return True
    return _SIDECAR.fullmatch(os.path.basename(path)) is not None


def _document_file(path: str, input_format: str) -> Source | None:
    """A file of a folder as a source; None where neither its name nor its content says so."""
    if bare_name(path).endswith(DOCUMENT_SUFFIXES):
        return _source(path, input_format)
    if not stat.S_ISREG(_stat(path).st_mode):
        return None
    try:
        source = _source(path, "auto")
    except InputError:
        return None
    if source.format == "text":
        return None
    return source if input_format == "auto" else replace(source, format=input_format)


def _source(path: str, input_format: str) -> Source:
    if path == STDIN:
        source = Source("<stdin>", path, "", "", 0, 0)
    else:
        status = _stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise InputError(f"{printable(path)}: neither a file nor a pipe")
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        source = Source(printable(path), path, "", "", size, status.st_mtime_ns)
    format_, compression = detect(source, input_format)
    if source.is_pipe and format_ in ("parquet", "arrow"):
        raise InputError(f"{source.name}: {format_} cannot be read from a pipe; give the file")
    return replace(source, format=format_, compression=compression)


def _arrow_files(name: str, paths: list[str]) -> Iterator[Source]:
    for path in paths:
        status = _stat(path)
        shown = f"{name}/{printable(os.path.basename(path))}"
        yield Source(shown, path, "arrow", "", status.st_size, status.st_mtime_ns)


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise InputError(f"{printable(path)}: {error.strerror}") from error
