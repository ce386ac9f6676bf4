"""One shard, made on this machine as any dataset is."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.encoding.options import worker_count
from tokpack.encoding.planned import Planned, load_means
from tokpack.encoding.run import encode_planned, ends_on_sigterm
from tokpack.errors import InputError
from tokpack.shards.plan import check_means
from tokpack.shards.report import finish, reporter_of

if TYPE_CHECKING:
    from tokpack.encoding.options import EncodeOptions
    from tokpack.encoding.plan import Plan
    from tokpack.indexed import Manifest
    from tokpack.progress import Show
    from tokpack.shards.plan import ShardPlan
    from tokpack.sources import Source


def encode_shard(
    plan: ShardPlan,
    prefix: str,
    number: int,
    *,
    workers: int = 0,
    scratch: str | None = None,
    progress: Show | None = None,
) -> list[Manifest]:
    """Make a shard of the dataset ``prefix``, or find it made; gives its manifests, by key.

    It may be made twice, and at once: the bytes are the same. Raises as ``encode`` does,
    ResumeError where this machine would not make the planned bytes, and BusyError where another
    process makes it on the same disk.
    """
    shard = plan.shard(number)
    options = plan.encode_options(prefix, number, workers=workers, scratch=scratch)
    # SIGTERM comes as an exception, so that the report says that the shard was stopped.
    with ends_on_sigterm(), reporter_of(prefix, number, progress) as reporter:
        made = encode_planned(
            lambda: _planned(plan, shard, options), options, progress=reporter, is_shard=True
        )
    finish(reporter, made[0])
    return made


def _planned(whole: ShardPlan, shard: Plan, options: EncodeOptions) -> Planned:
    means = load_means(options)
    check_means(whole, options, means)
    pairs = zip(shard.sources, shard.fingerprints, strict=True)
    sources = tuple(_as_planned(source, print_) for source, print_ in pairs)
    return Planned(replace(shard, sources=sources), means, worker_count(options))


def _as_planned(source: Source, fingerprint: str) -> Source:
    """The source with the time that its file has on this machine.

    InputError where its content is not the planned one. An object on a store is not looked at here:
    every read of it says which content is wanted.
    """
    if source.is_remote:
        return source
    try:
        found = os.stat(source.path)
    except OSError as error:
        raise InputError(
            f"{source.path}: {error.strerror}: every machine needs the inputs under the names that "
            "the plan has"
        ) from error
    if found.st_size == source.size and found.st_mtime_ns == source.mtime_ns:
        return source
    now = replace(source, size=found.st_size, mtime_ns=found.st_mtime_ns)
    if found.st_size != source.size or now.fingerprint() != fingerprint:
        raise InputError(
            f"{source.name} has changed since the plan was made: make it again with --overwrite"
        )
    return now
