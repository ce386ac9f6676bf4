"""The columns of a run's records, and whether ``where`` and ``map`` work with them.

Both are determined before any work, from the first records of some inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.apart import apart
from tokpack.encoding.choose import Chooser, check_by_rows, load, name_of
from tokpack.encoding.first_records import check_named, with_small_columns
from tokpack.encoding.kept import ALL, parse_keep, required
from tokpack.encoding.options import texts_of
from tokpack.errors import InputError, option
from tokpack.sources import WholeRecords, types_of
from tokpack.sources.sql import columns_of, parse, version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.encoding.first_records import FirstInputs
    from tokpack.encoding.options import EncodeOptions
    from tokpack.sources import Columns, DocumentBatch


def columns_read(options: EncodeOptions, types: Mapping[str, Any] | None) -> Columns:
    """The columns to read besides or instead of texts; ``types`` come from the plan."""
    names, settled = columns_of(options.where), types or {"chosen": {}}
    chosen = {name: settled["chosen"].get(name, "string") for name in names}
    if options.chat:
        return WholeRecords(chosen, with_nulls=options.with_nulls)
    if options.map is None:
        return list(dict.fromkeys([*names, *options.kept.values()]))
    return WholeRecords(chosen, settled["whole"])


def columns_in_process(options: Mapping[str, Any]) -> Columns | None:
    """The columns to read from an object in this process, with the ``options`` of ``encode``.

    None for all columns, if only the first records show which are needed.
    """
    names = columns_of(options.get("where"))
    if options.get("chat") or options.get("map") is not None:
        return WholeRecords(dict.fromkeys(names, ""))
    keep = texts_of("keep", options.get("keep") or ())
    return None if ALL in keep else list(dict.fromkeys([*names, *parse_keep(keep).values()]))


def settle(options: EncodeOptions, first: FirstInputs) -> dict[str, Any] | None:
    """The types of JSON columns, or None without ``where`` and ``map``.

    UsageError or InputError if one of them fails for the first records.
    """
    if not options.where and options.map is None:
        return None
    expression = parse(options.where) if options.where else None
    if options.map is not None:
        load(options.map)
    records = [record for one in first.inputs if not one.is_table for record in one.records]
    paths = expression.columns if expression else ()
    types: dict[str, str] = {}
    if records:
        types = types_of(records, [".".join(path) for path in paths])
        whole = types_of(records, None)
        for path in paths:
            check_named("where", path, records, whole)
        if expression:
            types |= {".".join(path): kind for path, kind in expression.casts.items()}
    settled: dict[str, Any] = {"chosen": types}
    if options.map is not None:
        settled["whole"] = types_of(records, None)
    columns = columns_read(options, settled)
    batches = [(one.name, batch) for one in first.inputs for batch in one.batches(columns)]
    what = f"{option('where')} and {option('map')} with the first records"
    apart(what, _try, options, types, batches)
    return settled


def deciding(options: EncodeOptions, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The entries for ``where`` and ``map`` in a plan, which determine the bytes."""
    facts: dict[str, Any] = {"columns": dict(columns)}
    if options.where:
        facts |= {"where": options.where, "duckdb": version()}
    if options.map is not None:
        facts |= {"map": name_of(load(options.map)), "map_version": options.map_version}
    return facts


def _try(
    options: EncodeOptions, types: Mapping[str, str], batches: Sequence[tuple[str, DocumentBatch]]
) -> None:
    """Apply ``where`` and ``map`` to the first records of inputs. UsageError, InputError."""
    chooser = Chooser(options, types)
    function = load(options.map) if options.map is not None else None
    columns: dict[str, None] = {}
    for name, batch in batches:
        chooser.choose(batch, name)
        if function is None or not len(batch.first):
            continue
        try:
            columns |= dict.fromkeys(check_by_rows(function, batch.first.whole, options.keys))
        except InputError as error:
            raise InputError(f"{error.args[0]} (among the first records of {name})") from error
    for key in required(options.keep) if columns else ():
        check_named("keep", tuple(key.split(".")), [], columns)


def with_columns(options: EncodeOptions, first: FirstInputs) -> EncodeOptions:
    """The options with ``keep="all"`` replaced by actual columns.

    UsageError if ``keep`` names a key that none of the first records has.
    """
    if options.map is None:  # map may add columns that the records do not have
        keys = required(options.keep)
        if options.chat:  # for pairs, {} in a key stands for each answer
            from tokpack.encoding.conversations import pair_keys

            answers = pair_keys(options.conversations, first.records)
            keys = list(dict.fromkeys(key.replace("{}", one) for key in keys for one in answers))
        first.check_columns("keep", keys)
    if ALL not in options.keep:
        return options
    return with_small_columns(options, first)
