"""One shard, made on this machine as any dataset is."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.encoding.options import worker_count
from tokpack.encoding.plan import PlannedRun
from tokpack.encoding.report import BEAT_SECONDS, LOCAL_BEAT_SECONDS, RunReporter
from tokpack.encoding.run import encode_planned, ends_on_sigterm
from tokpack.encoding.setup import load_setup
from tokpack.errors import InputError
from tokpack.shards.plan import check_current, remove_replaced, report_path
from tokpack.stores import is_url
from tokpack.stores.storage import storage_of

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
    overwrite: bool = False,
    progress: Show | None = None,
) -> list[Manifest]:
    """Make a shard of the dataset ``prefix``, or find it made; gives its manifests, by key.

    With ``overwrite`` it is made in any case, in place of a dataset that has its name. It may be
    made twice, and at once: the bytes are the same. Raises as ``encode`` does, ResumeError where
    this machine would not make the planned bytes, and BusyError where another process makes it on
    the same disk.
    """
    shard = plan.shard(number)
    if plan.replaced:
        names = (plan.whole(prefix), plan.prefixes(prefix, number))
        remove_replaced(plan, [name for some in names for name in some.values()])
    local = {"workers": workers, "scratch": scratch, "overwrite": overwrite}
    options = plan.encode_options(prefix, number, **local)
    report = report_path(prefix, number)
    # SIGTERM comes as an exception, so that the report says that the shard was stopped.
    beat = BEAT_SECONDS if is_url(prefix) else LOCAL_BEAT_SECONDS
    with (
        ends_on_sigterm(),
        RunReporter(
            lambda content: storage_of(report).put(report, content, "overwrite"),
            progress,
            shard=number,
            beat=beat,
        ) as reporter,
    ):
        manifests = encode_planned(
            lambda: _planned(plan, shard, options),
            options,
            progress=reporter,
            check=lambda: check_current(plan, prefix),
        )
    if reporter.has_told:  # it was not there already
        counts = {
            name: getattr(manifests[0], name) for name in ("documents", "tokens", "text_bytes")
        }
        reporter.end("done", done=reporter.last.total, **counts)
    return manifests


def _planned(whole: ShardPlan, shard: Plan, options: EncodeOptions) -> PlannedRun:
    setup = load_setup(options)
    whole.check_setup(options, setup)
    shared = whole.shared_sources(shard)
    pairs = zip(shard.sources, shard.fingerprints, strict=True)
    sources = tuple(
        _as_planned(*pair, is_shared=source in shared) for source, pair in enumerate(pairs)
    )
    return PlannedRun(replace(shard, sources=sources), setup, worker_count(options))


def _as_planned(source: Source, fingerprint: str, *, is_shared: bool) -> Source:
    """The source with the time that its file has on this machine.

    InputError where its content is not the planned one. The fingerprint is of samples alone, so a
    file of which other shards read other ranges must have the planned time too: else the shards
    could be of two versions of it. An object on a store is not looked at here: every read of it
    says which content is wanted.
    """
    if source.is_remote:
        return source
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise InputError(
            f"{source.path}: {error.strerror}: every machine needs the inputs under the names that "
            "the plan has"
        ) from error
    if status.st_size == source.size and status.st_mtime_ns == source.mtime_ns:
        return source
    now = replace(source, size=status.st_size, mtime_ns=status.st_mtime_ns)
    if status.st_size != source.size or now.fingerprint() != fingerprint:
        raise InputError(
            f"{source.name} has changed since the plan was made: plan again with --overwrite"
        )
    if is_shared:
        raise InputError(
            f"{source.name} has another time than when the plan was made, so it may have changed, "
            "and other shards read other ranges of it: plan again with --overwrite, or "
            "give a copy the time of its original (cp -p, rsync -t)"
        )
    return now
