"""The plan of a run: its inputs, their parts, tokenizer and options. Made before any work."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack import __version__
from tokpack.encoding.columns import deciding, settle, with_columns
from tokpack.encoding.first_records import FirstInputs
from tokpack.encoding.folder import sorted_json
from tokpack.encoding.options import worker_count
from tokpack.encoding.setup import described, load_setup
from tokpack.errors import ResumeError, option
from tokpack.quantities import counted
from tokpack.sources import COMPRESSIONS, Part, Source, discover, fingerprints, make_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tokpack.dataset import Manifest
    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.setup import TokenizerSetup


# Words for entries that are not named after their option.
_SHOWN = {
    "num_docs": option("limit"),
    "nltk": "the version of nltk",
    "duckdb": "the version of duckdb",
    "columns": "the types of the columns of its first records",
    "template_sha256": "the sha256 of the chat template",
    "struct_nulls": "the nulls in structs of its tables",
    "form": "the form of its conversations",
    "jinja2": "the version of jinja2",
    "tokens": "the special tokens of the chat template",
    "variables": option("template_var"),
}
# The texts are long, and their hashes are shown; types of columns may follow from another option.
_LATER = {"template", "tool_use", "columns"}
_AROUND = {
    "eod_id": f"the EOD ({option('eod_token')})",
    "frame": (
        f"the ids around a document ({option('prepend_bos')}, {option('bos_token')}, "
        f"{option('add_special_tokens')})"
    ),
}


def _other_input(one: Plan, other: Plan) -> str:
    pairs = zip(one.sources, one.fingerprints, other.sources, other.fingerprints, strict=True)
    for old, old_print, new, new_print in pairs:
        if old.format == new.format == "documents":
            if old_print != new_print:  # another resume_key, or none
                which = ("another" if new_print else "a") if old_print else "no"
                return f"it has {which} resume_key"
        elif (old_print, old.size) != (new_print, new.size):
            if old.name == new.name:
                return f"the input {new.name} has changed since"
            return f"it reads {old.name} where this run reads {new.name}"
        if (old.format, old.compression) != (new.format, new.compression):
            return f"the input {new.name} is now read as another format"
    return ""


def _other_tokenizer(one: Plan, other: Plan) -> str:
    old, new = one.tokenizer, other.tokenizer
    same = old["sha256"] == new["sha256"]
    for key in ("eod_id", "frame"):
        if (same or old["name"] == new["name"]) and old.get(key) != new.get(key):
            return f"it has {_AROUND[key]} {old.get(key)}, this run has {new.get(key)}"
    if same:
        return ""
    if old["name"] == new["name"]:
        return f"the files of the tokenizer {new['name']} have changed"
    return f"it uses the tokenizer {old['name']}, this run uses {new['name']}"


def _other_option(one: Plan, other: Plan) -> str:
    old, new = _flat(one.options), _flat(other.options)
    for key in [*sorted({*old, *new} - _LATER), "columns"]:
        before, now = old.get(key, False), new.get(key, False)
        if before != now:
            name = _SHOWN.get(key, option(key))
            return f"it has {name} = {before!r}, this run has {now!r}"
    return ""


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options in one flat mapping, with those of conversations."""
    chat = options.get("chat") or {}
    return {**options, **chat, "chat": bool(chat)}


NAME = "plan.json"  # in a work folder
PLAN_FORMAT = 4
RANGES = ("bytes", "frames")  # kinds of parts with a range of stored bytes
# Of an input:
_identifying = itemgetter("fingerprint", "size", "format", "compression")
_OF_INPUT = ("name", "format", "compression", "size")
_UNKNOWN = "or the same: an iterable is recognized only by its resume_key"
_UNVERSIONED = (
    f"or the same: a function of {option('map')} is recognized only by {option('map_version')}"
)
FILE_WORKERS = 20  # workers that one .bin can keep up with: docs/performance.md, "Many cores"
FILE_TEXT = 16 << 30  # bytes of text that deserve a .bin of their own
MIN_PART_BYTES = 4 << 20
MAX_PART_BYTES = 32 << 20  # so that ids can wait in memory for their place


@dataclass(frozen=True)
class Plan:
    """The parts of a run, in order, and everything that determines the bytes of its result.

    ``files`` are the first parts of its .bin files. Their number changes neither documents nor
    their order, so it is not in the fingerprint.
    """

    version: str  # of tokpack: only the version that began a run can resume it
    sources: tuple[Source, ...]
    fingerprints: tuple[str, ...]  # of the sources' contents
    tokenizer: dict[str, Any]
    options: dict[str, Any]
    parts: tuple[Part, ...]
    files: tuple[int, ...] = (0,)

    @property
    def bytes(self) -> int:
        """The stored bytes to read, without ranges of sources that no part has."""
        ranges = [part for part in self.parts if part.kind in RANGES]
        cut = {part.source for part in ranges}
        whole = sum(one.size for number, one in enumerate(self.sources) if number not in cut)
        return whole + sum(part.end - part.begin for part in ranges)

    @property
    def begins_inside_source(self) -> bool:
        """Whether the first part begins inside a source that begins in another shard."""
        return self.parts[0].kind in RANGES and self.parts[0].begin > 0

    @property
    def has_unversioned_map(self) -> bool:
        """Whether there is a ``map`` function without ``map_version``: it may change unnoticed."""
        return self.options["map"] is not None and self.options.get("map_version") is None

    @property
    def is_recognizable(self) -> bool:
        """Whether a later run can be recognized: it has no pipe, no function without version."""
        return all(self.fingerprints) and not self.has_unversioned_map

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256 of contents, tokenizer and options, in hex; parts change no bytes."""
        inputs = (
            (print_, source.size, source.format, source.compression)
            for print_, source in zip(self.fingerprints, self.sources, strict=True)
        )
        return _fingerprint(inputs, self.tokenizer, self.options)

    def matches(self, manifest: Manifest) -> bool:
        """Whether a finished dataset is what this plan would make."""
        if manifest.options.get("shard") != self.options.get("shard"):
            return False
        options = {name: manifest.options.get(name) for name in self.options}
        try:
            inputs = map(_identifying, manifest.inputs)
            return _fingerprint(inputs, manifest.tokenizer, options) == self.fingerprint
        except (KeyError, TypeError):  # a manifest that something else wrote
            return False

    def to_json(self) -> dict[str, Any]:
        """The plan for ``WorkFolder.write_json``; inputs and parts are iterators."""
        return {
            "format": PLAN_FORMAT,
            "tokpack": self.version,
            "fingerprint": self.fingerprint,
            "options": self.options,
            "tokenizer": self.tokenizer,
            "inputs": (
                {"fingerprint": print_, **source.to_json()}
                for print_, source in zip(self.fingerprints, self.sources, strict=True)
            ),
            "parts": (part.to_json() for part in self.parts),
            "files": list(self.files),
        }

    @classmethod
    def read(cls, folder: WorkFolder, like: Plan | None = None) -> Plan:
        """The plan in a work folder. ResumeError if it is damaged or of another format.

        Sources and parts equal to those of ``like`` are shared with it, to save memory.
        """
        try:
            value = folder.read_json(NAME, _Entries(like))
            if value is None:
                raise ResumeError(f"its {NAME} is damaged, or of another version of tokpack")
            if value.get("format") != PLAN_FORMAT:
                raise ResumeError(f"its plan has format {value.get('format')!r}, not {PLAN_FORMAT}")
            plan = cls(
                version=value["tokpack"],
                fingerprints=tuple(fingerprint for fingerprint, _ in value["inputs"]),
                sources=tuple(source for _, source in value["inputs"]),
                tokenizer=value["tokenizer"],
                options=value["options"],
                parts=tuple(value["parts"]),
                files=tuple(value["files"]),
            )
            starts = [*plan.files, len(plan.parts)]
            whole = value["fingerprint"] == plan.fingerprint
            whole = whole and starts[0] == 0 and all(a < b for a, b in pairwise(starts))
        except (KeyError, TypeError, ValueError, AttributeError):
            whole = False
        if not whole:
            raise ResumeError(f"its {NAME} cannot be understood")
        return plan

    def manifest_difference(self, manifest: Manifest) -> str:
        """How a finished dataset differs from this plan's, in words; "" if not visible."""
        try:
            inputs = [{name: one[name] for name in _OF_INPUT} for one in manifest.inputs]
            theirs = replace(
                self,
                sources=tuple(Source(path="", mtime_ns=0, **entry) for entry in inputs),
                fingerprints=tuple(one["fingerprint"] for one in manifest.inputs),
                tokenizer=manifest.tokenizer,
                options={n: v for n, v in manifest.options.items() if n in self.options},
            )
            unknown = any(one.format == "documents" for one in theirs.sources)
            same = _UNVERSIONED if self.has_unversioned_map else _UNKNOWN if unknown else ""
            return theirs.difference(self) or same
        except (KeyError, TypeError):  # a manifest that something else wrote
            return ""

    def other_files(self, count: int) -> str:
        """How a run with ``count`` .bin files differs from this plan's; "" if it does not."""
        now = len(self.files)
        return "" if count == now else f"it has {counted(count, '.bin file')}, this run {now}"

    def touched(self, other: Plan) -> list[int]:
        """The numbers of sources with another modification time in ``other``, the current plan."""
        pairs = zip(self.sources, other.sources, strict=True)
        return [n for n, (old, new) in enumerate(pairs) if old.mtime_ns != new.mtime_ns]

    def difference(self, other: Plan) -> str:
        """How ``other``, the current plan, differs from this one, in words; "" if it does not."""
        if self.version != other.version:
            return f"it was begun by tokpack {self.version}, this is {other.version}"
        if len(self.sources) != len(other.sources):
            inputs = "input" if len(self.sources) == 1 else "inputs"
            return f"it has {len(self.sources)} {inputs}, this run has {len(other.sources)}"
        return (
            _other_input(self, other) or _other_tokenizer(self, other) or _other_option(self, other)
        )

    def file(self, number: int) -> Plan:
        """The plan of .bin file ``number`` alone, as if it were a run of its own."""
        begin, end = (*self.files, len(self.parts))[number : number + 2]
        parts = self.parts[begin:end]
        first, last = parts[0].source, parts[-1].sources.stop
        return replace(
            self,
            sources=self.sources[first:last],
            fingerprints=self.fingerprints[first:last],
            options={**self.options, "shard": number},
            parts=tuple(part.renumbered(first) for part in parts),
            files=(0,),
        )


class _Entries:
    """Makes sources and parts from the objects in a plan's JSON.

    An equal one at the same place in ``like`` is reused, to save memory.
    """

    def __init__(self, like: Plan | None) -> None:
        self._inputs: Iterator[Any] = iter(())
        self._parts: Iterator[Any] = iter(())
        if like is not None:
            self._inputs = zip(like.fingerprints, like.sources, strict=True)
            self._parts = iter(like.parts)

    def __call__(self, entry: dict[str, Any]) -> Any:
        made: Any
        if "mtime_ns" in entry:
            made, known = (entry.pop("fingerprint"), Source(**entry)), self._inputs
        elif "weight" in entry:
            made, known = Part(**entry), self._parts
        else:
            return entry
        like = next(known, None)
        return like if like == made else made


def _fingerprint(
    inputs: Iterable[Sequence[Any]], tokenizer: Mapping[str, Any], options: Mapping[str, Any]
) -> str:
    """The sha256, in hex, of exactly what determines the bytes of a dataset."""
    identity = {"inputs": iter(inputs), "tokenizer": tokenizer["sha256"], "options": options}
    if "frame" in tokenizer:
        identity["frame"] = tokenizer["frame"]
    digest = hashlib.sha256()
    for text in sorted_json(identity):
        digest.update(text)
    return digest.hexdigest()


def deciding_options(
    options: EncodeOptions,
    setup: TokenizerSetup,
    columns: Mapping[str, Any] | None = None,
    chat: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The options that change the bytes of the result, with defaults, as JSON values.

    ``columns`` come from ``settle``, ``chat`` from ``settled_chat``.
    """
    special = options.special_tokens
    if special != "error":
        special = setup.tokenizer.special_mode(special)
    deciding_values: dict[str, Any] = {
        "keys": list(options.keys),
        "append_eod": options.append_eod,
        "dtype": setup.dtype,
        "special_tokens": special,
        "empty": options.empty,
        "ftfy": options.ftfy,
        "split_sentences": options.split_sentences,
        "keep_newlines": options.keep_newlines,
        "lang": options.lang if options.split_sentences else "",
        "num_docs": options.limit,
        "max_document_bytes": options.max_document_bytes,
        "where": options.where or None,
        "map": None,
        "chat": chat,
    }
    if columns is not None:
        deciding_values |= deciding(options, columns)
    if chat is not None and chat["pairs"]:
        deciding_values["pairs"] = chat["pairs"]
    if options.has_table:  # a dataset with a table also serves a request without one
        deciding_values["trace"] = True
    if options.keep:
        deciding_values["keep"] = list(options.keep)
    if options.json_path is not None:
        deciding_values["json_path"] = options.json_path
    # The versions of libraries that determine bytes.
    if options.ftfy:
        import ftfy

        deciding_values["ftfy"] = ftfy.__version__
    if options.split_sentences:
        import nltk

        deciding_values["nltk"] = nltk.__version__
    return deciding_values


def file_count(options: EncodeOptions, sources: Sequence[Source], workers: int) -> int:
    """The number of .bin files of a run: as requested, else by its workers and its size."""
    if options.files:
        return options.files
    text = sum(one.size * COMPRESSIONS[one.compression].expansion for one in sources)
    return max(1, min(-(-workers // FILE_WORKERS), int(text // FILE_TEXT)))


def divided(parts: Sequence[Part], count: int) -> tuple[int, ...]:
    """The first part of each of ``count`` files of similar size; at most one file per part."""
    total, before = sum(part.weight for part in parts), 0.0
    count = min(count, len(parts))
    starts = [0]
    for number, part in enumerate(parts):
        due = (before + part.weight / 2) * count >= total * len(starts)
        is_last = len(parts) - number == count - len(starts)
        if number > starts[-1] and len(starts) < count and (due or is_last):
            starts.append(number)
        before += part.weight
    return tuple(starts)


class Prepared(NamedTuple):
    """A request after a look at its inputs, before they are cut."""

    options: EncodeOptions  # ``keep`` has names, even if "all" was requested
    setup: TokenizerSetup
    deciding: dict[str, Any]  # as ``deciding_options`` has them


def prepare(options: EncodeOptions, sources: Sequence[Source]) -> Prepared:
    """The request with its tokenizer loaded and first records read. Raises as ``encode`` does."""
    setup = load_setup(options)
    first = FirstInputs(options, sources)
    options = with_columns(options, first)
    columns = settle(options, first)
    chat = None
    if options.chat:
        from tokpack.encoding.conversations import settled_chat

        chat = settled_chat(options, setup.tokenizer, first)
    return Prepared(options, setup, deciding_options(options, setup, columns, chat))


class PlannedRun(NamedTuple):
    """A plan, and what it was made with; ``workers`` is the number of processes."""

    plan: Plan
    setup: TokenizerSetup
    workers: int


def plan_run(options: EncodeOptions, source: Source | None = None) -> PlannedRun:
    """The plan that ``encode`` would follow. Raises as ``encode`` does before any work.

    ``source`` is an object of this process that is read instead of the inputs, or None.
    """
    sources = [source] if source else discover(options.inputs, **options.for_inputs)
    options, setup, deciding = prepare(options, sources)
    # With a limit one worker reads in order, so that the first N records are always the same.
    workers = worker_count(options) if options.limit is None else 1
    files = file_count(options, sources, workers)
    # Files end where parts end, so with several files parts must not depend on the workers.
    ways = workers if files == 1 else files * FILE_WORKERS
    size = sum(source.size for source in sources)
    target = min(max(size // (8 * ways), MIN_PART_BYTES), MAX_PART_BYTES)
    parts = make_parts(sources, ways=ways, target_bytes=target)
    plan = Plan(
        version=__version__,
        sources=tuple(sources),
        fingerprints=tuple(fingerprints(sources)),
        tokenizer=described(options, setup),
        options=deciding,
        parts=tuple(parts),
        files=divided(parts, files),
    )
    return PlannedRun(plan, setup, workers)
