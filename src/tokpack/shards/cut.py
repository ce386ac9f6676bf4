"""From a request to a plan in shards: cut the inputs, and keep secrets out of the plan."""

from __future__ import annotations

import json
import logging
import os
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tokpack import __version__
from tokpack.encoding import (
    BEAT_SECONDS,
    LOCAL_BEAT_SECONDS,
    MAX_PART_BYTES,
    MIN_PART_BYTES,
    PlannedRun,
    RunReporter,
    described,
    encode_planned,
    ends_on_sigterm,
    importable_name,
    load_setup,
    prepare,
    worker_count,
)
from tokpack.errors import BusyError, InputError, Remark, UsageError, option
from tokpack.quantities import bytes_text, counted
from tokpack.shards import SHARD_BYTES
from tokpack.shards.plan import ShardPlan, check_current, prefix_of, remove_replaced, report_path
from tokpack.sources import Source, discover, fingerprints, make_parts
from tokpack.storage import is_url, shown, storage_of, writes_conditionally
from tokpack.tokenizers import TOKENIZER_PATHS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.dataset import Manifest
    from tokpack.encoding import EncodeOptions, Plan
    from tokpack.progress import Show
    from tokpack.sources import Part


_logger = logging.getLogger(__name__)
_LARGE = 2  # times the requested size of a shard deserve a warning
_BYTES_A_TOKEN = 4
_PARTS_A_SHARD = 256  # enough to keep many workers busy
# Options for one machine only, or elsewhere in the plan.
_LOCAL = {
    *("inputs", "output", "output_names", "workers", "overwrite", "scratch", "limit"),
    "files",
}


def make_shard_plan(options: EncodeOptions, shard_bytes: int = SHARD_BYTES) -> ShardPlan:
    """Plan the run that ``options`` request, in shards of about ``shard_bytes`` of text.

    The decompressed size of files is estimated. A file is cut only if it is larger than a shard and
    can be read from its middle. Raises as ``encode`` does before any work, and UsageError for
    inputs that cannot be cut.
    """
    if options.limit is not None:
        raise UsageError(
            f"{option('limit')} takes the first records of all inputs, which cannot be cut into "
            "shards"
        )
    if prefix_of(options.output) != options.output:
        raise UsageError(
            f"{shown(options.output)}: a name with this ending would be taken for a plan, not for "
            "a dataset: choose another output"
        )
    if options.map is not None and options.map_version is None:
        raise UsageError(
            f"{option('map')} with shards needs {option('map_version')}, a name for what the "
            "function does: otherwise machines might use different functions unnoticed"
        )
    if shard_bytes < 1:
        raise UsageError(f"{option('shard_size')} is {shard_bytes}, expected at least 1")
    if shard_bytes < MIN_PART_BYTES:
        _logger.warning(
            "%s: %s is below the smallest piece of a file, %s: "
            "files are cut into pieces of that size",
            Remark(option("shard_size")),
            bytes_text(shard_bytes),
            bytes_text(MIN_PART_BYTES),
        )
    if is_url(options.output) and shown(options.output) != options.output:
        raise _has_secret(options.output)
    sources = discover(options.inputs, **options.for_inputs, pipes=False)
    for source in sources:
        _check_shared(source)
    options, setup, deciding = prepare(options, sources)
    prints = fingerprints(sources)
    lines = []
    for parts in _shards(sources, shard_bytes):
        begin = parts[0].source
        _warn_of_large(sources[begin], parts, shard_bytes)
        inputs = [
            {"fingerprint": prints[n], **_shared(sources[n]).to_json()}
            for n in range(begin, parts[-1].sources.stop)
        ]
        rows = [list(part.renumbered(begin).to_json().values()) for part in parts]
        lines.append(json.dumps({"inputs": inputs, "parts": rows}))
    return ShardPlan(
        version=__version__,
        options=_same_everywhere(options),
        deciding=deciding,
        tokenizer=described(options, setup),
        names={key: name.rpartition("/")[2] for key, name in options.output_names.items()},
        inputs=len(sources),
        size=sum(source.size for source in sources),
        shards=len(lines),
        body="".join(line + "\n" for line in lines).encode(),
    ).identified()


def check_fits(plan: ShardPlan, prefix: str, *, machines: int, disk: int) -> list[str]:
    """What does not fit a cluster of ``machines``, in words.

    UsageError if the smallest ``disk`` (in bytes, 0: unknown) has no space for a shard.
    """
    said = []
    sizes = [sum(part.weight for part in shard.parts) for shard in plan.each_shard()]
    if plan.shards < machines:
        fitting = bytes_text(max(1, sum(sizes) // machines))
        said.append(
            f"the plan has {counted(plan.shards, 'shard')}, so of {machines} machines "
            f"{machines - plan.shards} would have nothing to do: choose about "
            f"{option('shard_size', fitting)}, or fewer machines"
        )
    if not is_url(prefix):
        return said
    # On its way to a store a shard is on a local disk: about a token per four bytes of text.
    largest = max(sizes) * plan.item_size // _BYTES_A_TOKEN
    if 0 < disk < largest:
        raise UsageError(
            f"the largest shard takes about {bytes_text(largest)} of local disk, but a machine has "
            f"{bytes_text(disk)}: choose a smaller {option('shard_size')}, or name a larger disk "
            f"with {option('scratch')}"
        )
    if not writes_conditionally(report_path(prefix, 0) + ".probe"):
        said.append(
            f"{shown(prefix)}: this store does not compare before it writes, so now and then two "
            "machines will make the same shard; the bytes are the same"
        )
    return said


def _warn_of_large(source: Source, parts: Sequence[Part], shard_bytes: int) -> None:
    """Warn of a file that makes a shard much larger than requested."""
    size = sum(part.weight for part in parts)
    is_whole = source.compression or parts[0].kind == "rows"
    if size < _LARGE * shard_bytes or not is_whole:
        return
    why = f"{source.format} stays whole"
    if source.compression:
        why = "it is compressed in one piece; zst with several frames, as pzstd makes, can be cut"
    _logger.warning(
        "%s becomes one shard of about %s, because it cannot be cut: %s",
        source.name,
        bytes_text(size),
        why,
    )


def _same_everywhere(options: EncodeOptions) -> dict[str, Any]:
    values = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in _LOCAL}
    for name in TOKENIZER_PATHS:
        path = values[name]
        if path and is_url(path) and shown(path) != path:
            raise _has_secret(path)
        if path and not is_url(path) and os.path.exists(path):
            values[name] = os.path.abspath(path)
    if options.map is not None:
        values["map"] = importable_name(options.map)
    return {**values, "keys": list(options.keys), "keep": list(options.keep)}


def _check_shared(source: Source) -> None:
    """Raise UsageError for a source that other machines cannot read."""
    if source.is_remote and source.path != source.name:
        raise _has_secret(source.path)


def _has_secret(url: str) -> UsageError:
    return UsageError(
        f"{shown(url)}: its URL holds a secret, which no plan may have: name it without one, and "
        "give the credentials to each machine"
    )


def _shared(source: Source) -> Source:
    return source if source.is_remote else replace(source, path=os.path.abspath(source.path))


def _shards(sources: Sequence[Source], shard_bytes: int) -> Iterator[list[Part]]:
    """Groups of consecutive parts, each of about ``shard_bytes`` of text."""
    size = min(max(shard_bytes // _PARTS_A_SHARD, MIN_PART_BYTES), MAX_PART_BYTES)
    total = sum(source.size for source in sources)
    # With as many ways as shards, only files of about a shard or more are searched for frames.
    ways = max(1, -(-total // shard_bytes))
    parts = make_parts(sources, ways=ways, target_bytes=size)
    shard: list[Part] = []
    weight = 0
    for unit in _units(parts, shard_bytes):
        weight_of_unit = sum(part.weight for part in unit)
        if shard and weight + weight_of_unit / 2 > shard_bytes:
            yield shard
            shard, weight = [], 0
        shard += unit
        weight += weight_of_unit
    if shard:
        yield shard


def _units(parts: Sequence[Part], shard_bytes: int) -> Iterator[list[Part]]:
    """Groups of parts that must stay together: a whole file, unless it is larger than a shard.

    Files of rows (parquet, Arrow) stay whole, because the number of rows before a cut is unknown.
    """
    at = 0
    while at < len(parts):
        end = at + 1
        while end < len(parts) and parts[end].source == parts[at].source:
            end += 1
        unit = list(parts[at:end])
        if sum(part.weight for part in unit) > shard_bytes and unit[0].kind != "rows":
            yield from ([part] for part in unit)
        else:
            yield unit
        at = end


@contextmanager
def reported(
    prefix: str, number: int, lease: Callable[[bytes], None] | None, progress: Show | None
) -> Iterator[RunReporter]:
    """What tells of a shard while it is made, by its lease if there is one.

    SIGTERM becomes an exception, so that the report says that the shard was stopped.
    """
    path = report_path(prefix, number)
    write = lease or (lambda content: storage_of(path).put(path, content, "overwrite"))
    beat = BEAT_SECONDS if is_url(prefix) else LOCAL_BEAT_SECONDS
    with ends_on_sigterm(), RunReporter(write, progress, shard=number, beat=beat) as reporter:
        if lease:
            reporter.begin()
        yield reporter


def tell_done(reporter: RunReporter, **counts: Any) -> None:
    """Tell that a shard is done, unless it existed already."""
    if reporter.has_told:
        with suppress(BusyError):  # who has taken it will find it done
            reporter.end("done", done=reporter.last.total, **counts)


def encode_shard(
    plan: ShardPlan,
    prefix: str,
    number: int,
    *,
    workers: int = 0,
    scratch: str | None = None,
    overwrite: bool = False,
    progress: Show | None = None,
    lease: Callable[[bytes], None] | None = None,
) -> list[Manifest]:
    """Make a shard of the dataset ``prefix``, unless it exists. Returns its manifests, by key.

    With ``overwrite`` it is made in any case, and replaces a dataset with its name. Two machines
    may make it at the same time, with the same bytes; with a ``lease``, see ``take``, only one
    does. Raises as ``encode`` does, ResumeError if this machine would not make the planned bytes,
    and BusyError if another process makes it on the same disk, or has taken the lease.
    """
    shard = plan.shard(number)
    if plan.replaced:
        names = (plan.whole(prefix), plan.prefixes(prefix, number))
        remove_replaced(plan, [name for some in names for name in some.values()])
    local = {"workers": workers, "scratch": scratch, "overwrite": overwrite}
    options = plan.encode_options(prefix, number, **local)
    with reported(prefix, number, lease, progress) as reporter:
        manifests = encode_planned(
            lambda: _planned(plan, shard, options),
            options,
            progress=reporter,
            check=lambda: check_current(plan, prefix),
            beat=reporter.beat if lease else lambda: None,
        )
    counts = {name: getattr(manifests[0], name) for name in ("documents", "tokens", "text_bytes")}
    tell_done(reporter, **counts)
    return manifests


def _planned(whole: ShardPlan, shard: Plan, options: EncodeOptions) -> PlannedRun:
    kept = vars(whole)  # loaded once, for all shards that this process makes
    if "setup" not in kept:
        setup = load_setup(options)
        whole.check_setup(options, setup)
        kept["setup"] = setup
    shared = whole.shared_sources(shard)
    pairs = zip(shard.sources, shard.fingerprints, strict=True)
    sources = tuple(
        _as_planned(*pair, is_shared=source in shared) for source, pair in enumerate(pairs)
    )
    return PlannedRun(replace(shard, sources=sources), kept["setup"], worker_count(options))


def _as_planned(source: Source, fingerprint: str, *, is_shared: bool) -> Source:
    """The source with the modification time of its file on this machine.

    InputError if its content is not as planned. The fingerprint covers only samples of a file. So
    if other shards read other ranges of it, the time must be as planned too: otherwise shards might
    come from two versions of it. An object on a store is not checked here, because every read names
    the planned version.
    """
    if source.is_remote:
        return source
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise InputError(
            f"{source.path}: {error.strerror}: every machine needs the inputs under the names in "
            "the plan"
        ) from error
    if status.st_size == source.size and status.st_mtime_ns == source.mtime_ns:
        return source
    now = replace(source, size=status.st_size, mtime_ns=status.st_mtime_ns)
    if status.st_size != source.size or now.fingerprint() != fingerprint:
        raise InputError(
            f"{source.name} has changed since the plan was made: plan again with "
            f"{option('overwrite', True)}"
        )
    if is_shared:
        raise InputError(
            f"{source.name} has another modification time than when the plan was made, so it may "
            "have changed, and other shards read other ranges of it: plan again with "
            f"{option('overwrite', True)}, or copy it with its time (cp -p, rsync -t)"
        )
    return now
