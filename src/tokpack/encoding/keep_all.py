"""``keep="all"``: the columns that it stands for, by the first records of the inputs.

They are settled before any work is begun, and stand in the plan, so that they depend neither on the
number of workers nor on where an input is cut.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.encoding.kept import ALL
from tokpack.indexed.table import COLUMNS
from tokpack.sources.values import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.encoding.first_records import FirstInputs
    from tokpack.encoding.options import EncodeOptions

SMALL_BYTES = 256  # of the JSON text of a value, on average of the first records

_log = logging.getLogger(__name__)


def with_small_columns(options: EncodeOptions, first: FirstInputs) -> EncodeOptions:
    """The options with all small columns in the place of ``all``, in the order of the records.

    A warning tells which are larger. InputError where an input cannot be read.
    """
    records, sizes = first.records, Counter[str]()
    for record in records:
        for name, value in record.items():
            sizes[name] += 0 if value is None else len(as_text(value))
    texts = {name for key in options.keys for name in (key, key.partition(".")[0])}
    named = [one for one in options.keep if one != ALL]
    chosen = {one.partition("=")[2] or one for one in named}
    means = {name: sizes[name] / len(records) for name in sizes if name not in texts | chosen}
    small = [name for name, mean in means.items() if name and mean <= SMALL_BYTES]
    large = [f"{name} ({mean:,.0f} bytes)" for name, mean in means.items() if mean > SMALL_BYTES]
    if large:
        _log.warning(
            "--keep all (keep='all') leaves out what has more than %d bytes a record on average: "
            "%s; name it beside all to keep it",
            *(SMALL_BYTES, ", ".join(large)),
        )
    return replace(options, keep=(*_requests(small, named), *named), trace=True)


def _requests(keys: Iterable[str], others: Sequence[str]) -> list[str]:
    """What ``keep`` takes for some keys: a column that has its name is called otherwise."""
    taken = {*COLUMNS, *(one.partition("=")[0] for one in others)}
    requests = []
    for key in keys:
        name = key.replace("=", "_")
        while name in taken:
            name += "_"
        taken.add(name)
        requests.append(key if name == key else f"{name}={key}")
    return requests
