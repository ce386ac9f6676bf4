"""Commit: check every shard, then write the manifest that makes them one dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tokpack import machine
from tokpack.counts import added
from tokpack.dataset import Manifest, bin_path, idx_path, manifest_path
from tokpack.dataset.manifest import MANIFEST, facts_of_pieces, summed
from tokpack.dataset.outputs import sizes
from tokpack.encoding import LOST_SECONDS, check_budget, parse_report
from tokpack.errors import FormatError, InputError, OutputError, option
from tokpack.shards.plan import (
    beside,
    check_current,
    plan_folder,
    plan_path,
    remove_replaced,
    report_path,
)
from tokpack.storage import (
    exists,
    listed_files,
    look,
    refuse,
    remove,
    replace,
    shown,
    small_files,
    storage_of,
)
from tokpack.storage.disk import write_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokpack.encoding import Plan, Report
    from tokpack.shards.plan import ShardPlan, Work
    from tokpack.storage import ListedFile, Version


ShardState = Literal["done", "running", "lost", "failed", "stopped", "open"]


@dataclass(frozen=True)
class ShardStatus:
    """The state of a shard: ``open`` if not begun, ``lost`` if its maker has been silent for long.

    ``tokens`` come from the size of the .bin if it is done, else from the last report.
    """

    number: int
    state: ShardState
    report: Report | None
    tokens: int = 0
    told: ListedFile | None = field(default=None, repr=False)  # the report as listed


_MOST_READ = 100  # reports read at once; a hundredth of the shards, if that is more


def survey(plan: Work, prefix: str, before: Sequence[ShardStatus] = ()) -> list[ShardStatus]:
    """All shards of a plan, in order. InputError.

    A shard is done when its files exist; its manifest is written last, and ``commit`` checks
    contents. Reports that are unchanged since ``before`` are not read again. Of very many only some
    are read, those silent for the longest time and the largest ones: other unfinished shards count
    as running or lost by the age of their report.
    """
    files = listed_files([*plan.begins(prefix), plan_folder(prefix) + "/"])
    made = plan.made(prefix, files)
    versions = {
        n: files[path] for n in range(plan.shards) if (path := report_path(prefix, n)) in files
    }
    reports: dict[int, Report | None] = {
        one.number: one.report
        for one in before
        if one.report and one.told == versions.get(one.number)
    }
    new = [number for number in versions if number not in reports]
    if len(new) > (most := max(_MOST_READ, plan.shards // 100)):
        new = sorted((n for n in new if made[n] is None), key=lambda n: versions[n].written)
        # The largest ones have a message, because their shards failed.
        long = sorted(new[most // 2 :], key=lambda n: -versions[n].size)
        new = new[: most // 2] + long[: most // 2]
    reports |= _read_reports(prefix, {number: versions[number].written for number in new})
    return [
        _status(number, tokens, reports, versions.get(number)) for number, tokens in enumerate(made)
    ]


def _read_reports(prefix: str, written: Mapping[int, float]) -> dict[int, Report | None]:
    """The reports of some shards; None for a missing or invalid one. InputError."""
    paths = [report_path(prefix, number) for number in written]
    return {
        number: parse_report(content, path, written[number])
        for number, path, content in zip(written, paths, small_files(paths), strict=True)
    }


def _status(
    number: int,
    tokens: int | None,
    reports: Mapping[int, Report | None],
    told: ListedFile | None,
) -> ShardStatus:
    report = reports.get(number)
    state: ShardState
    if tokens is not None:
        return ShardStatus(number, "done", report, tokens, told)
    if told and number not in reports:
        state = "lost" if machine.clock.wall() - told.written > LOST_SECONDS else "running"
    elif report is None or report.state == "done":  # done, but its files were removed
        state = "open"
    else:
        state = "lost" if report.is_lost else report.state
    return ShardStatus(number, state, report, report.tokens if report else 0, told)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in the form of ``--shard`` and job arrays: 3,5-7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def missing(shards: Sequence[ShardStatus]) -> list[int]:
    """The shards that must be made: neither done nor being made."""
    return [one.number for one in shards if one.state not in ("done", "running")]


def commit(plan: ShardPlan, prefix: str, *, overwrite: bool = False) -> list[Manifest]:
    """Check every shard of a plan, and write the manifest of each key's dataset. Returns them.

    Only manifests and listings are read. InputError if shards are missing, or have too many bad
    records together; FormatError if one is not as planned; OutputError if another dataset with the
    name exists and may not be replaced, or if another plan was made meanwhile.
    """
    shards = list(plan.each_shard())
    manifests = []
    for key, whole in plan.whole(prefix).items():
        names = [plan.prefixes(prefix, number)[key] for number in range(plan.shards)]
        parts = _loaded(names, prefix)
        _check(shards, parts, names, key, storage_of(whole).listed(whole + "-"))
        manifests.append(_joined(plan, shards, key, names, parts))
        if not manifests[-1].tokens:
            raise InputError(
                f"{shown(whole)}: no document in any shard has a token under the key {key!r}"
            )
    options = plan.encode_options(prefix, 0)
    check_budget(manifests[0].rejected, options, shown(prefix) + "-*.rejects.jsonl")
    for whole, manifest in zip(plan.whole(prefix).values(), manifests, strict=True):
        check_current(plan, prefix)
        written = _write(plan, whole, manifest, overwrite=overwrite)
        try:
            check_current(plan, prefix)  # a newer plan removes old shards
        except OutputError:
            if written:
                remove(manifest_path(whole), written)
            raise
    return manifests


def data_path(prefix: str, manifest: Manifest) -> str:
    """The value of ``--data-path`` of the Megatron family for the shards: a weight, a prefix, ...

    Weights are token counts, so that every document is seen equally often.
    """
    pieces = manifest.pieces or ()
    some = [piece for piece in pieces if piece.tokens]  # Megatron refuses a weight of 0
    return "".join(f"{piece.tokens} {beside(prefix, piece.prefix)}\n" for piece in some)


def write_data_path(plan: ShardPlan, prefix: str, text: str, path: str, *, overwrite: bool) -> None:
    """Write the text of ``data_path`` to a file on a disk. UsageError, OutputError."""
    refuse([path], option("data_path"))
    shards = (file for file, _ in plan.outputs(prefix))
    inputs = (plan_path(prefix), *plan.files(), *shards)
    write_output(path, [text.encode()], inputs, overwrite=overwrite)


def _loaded(names: Sequence[str], prefix: str) -> list[Manifest]:
    contents = small_files([manifest_path(name) for name in names])
    missing = [number for number, content in enumerate(contents) if content is None]
    if missing:
        raise InputError(
            f"{shown(prefix)}: {len(missing)} of {len(names)} shards are missing; make "
            f"them with `tokpack encode --plan {shown(prefix)} --shard {ranges(missing)}`, and see "
            f"`tokpack shards status {shown(prefix)}`"
        )
    return [
        Manifest.from_json(content or b"", shown(manifest_path(name)))
        for name, content in zip(names, contents, strict=True)
    ]


def _check(
    shards: Sequence[Plan],
    manifests: Sequence[Manifest],
    names: Sequence[str],
    key: str,
    files: Mapping[str, ListedFile],
) -> None:
    """Raise FormatError if a shard is not as planned, or lacks files."""
    for shard, one, name in zip(shards, manifests, names, strict=True):
        where = shown(manifest_path(name))
        if not shard.matches(one) or one.options.get("key") != key:
            why = shard.manifest_difference(one)
            raise FormatError(
                f"{where}: not the shard that was planned{f' ({why})' if why else ''}: remove its "
                "files and make it again"
            )
        for path, expected in sizes(name, one):
            size = files[path].size if path in files else "no"
            if size != expected:
                raise FormatError(
                    f"{shown(path)} has {size} bytes, its manifest says "
                    f"{expected}: remove {where} and make the shard again"
                )
        if not one.adds_up:
            raise FormatError(f"{where}: its counts do not add up")
        if one.dtype != manifests[0].dtype:
            raise FormatError(
                f"{where}: ids are {one.dtype}, in earlier shards {manifests[0].dtype}"
            )


def _joined(
    plan: ShardPlan,
    shards: Sequence[Plan],
    key: str,
    names: Sequence[str],
    manifests: Sequence[Manifest],
) -> Manifest:
    """The manifest of the dataset that consists of all shards."""
    records = [
        one.record(name.rpartition("/")[2]) for name, one in zip(names, manifests, strict=True)
    ]
    return Manifest.new(
        summed(manifests),
        tokenizer=plan.tokenizer,
        options={
            **plan.deciding,
            "plan": plan.id,
            "key": key,
            "on_error": plan.options["on_error"],
        },
        inputs=_inputs(shards, manifests),
        dtype=manifests[0].dtype,
        **facts_of_pieces(records),
    )


def _inputs(shards: Sequence[Plan], manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """The inputs of all shards, with summed counts if several have read ranges of a file."""
    inputs: list[dict[str, Any]] = []
    for shard, manifest in zip(shards, manifests, strict=True):
        entries = [dict(entry) for entry in manifest.inputs]
        if shard.begins_inside_source:
            inputs[-1] = added(inputs[-1], entries.pop(0))
        inputs += entries
    return inputs


def _write(plan: ShardPlan, prefix: str, manifest: Manifest, *, overwrite: bool) -> Version | None:
    """Write the manifest. Returns its version, or None if one with the same shards exists."""
    path = manifest_path(prefix)
    for file in (idx_path(prefix), bin_path(prefix)):
        if exists(file):
            raise OutputError(
                f"{shown(file)} exists, and would hide the shards: choose another output, or move "
                "it away"
            )
    content = manifest.to_json().encode()
    if written := storage_of(path).put(path, content, "create"):
        return written
    (there,) = small_files([path])
    if _is_same(there, manifest, path):
        return None
    output, detail = (path, MANIFEST), " and is another dataset"
    remove_replaced(plan, [prefix])
    versions = look([output], plan.files(), overwrite=overwrite, detail=detail)
    return replace(path, content, versions[path])


def _is_same(content: bytes | None, manifest: Manifest, path: str) -> bool:
    """Whether the manifest that exists lists the same shards."""
    try:
        return Manifest.from_json(content or b"", shown(path)).pieces == manifest.pieces
    except FormatError:
        return False
