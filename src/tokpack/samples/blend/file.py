"""Blend files: YAML that people write and that ``tokpack blend -o`` saves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from tokpack.dataset import MMapIndexedDataset, prefix_of
from tokpack.dataset.outputs import dataset_files
from tokpack.display import brief
from tokpack.errors import FormatError, UsageError
from tokpack.samples.blend.datasets import marks
from tokpack.samples.blend.plan import BlendPlan, plan_of
from tokpack.samples.blend.spec import (
    OPTIONS,
    BlendSpec,
    Entries,
    Entry,
    plain_option,
    takes_settings,
    unknown,
)
from tokpack.storage import is_url, joined, refuse
from tokpack.storage.disk import Kind, check_outputs, is_sealed, replace_file, sealed
from tokpack.storage.disk.foreign_yaml import read_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from tokpack.keywords import BlendOptions
    from tokpack.samples.blend.spec import Changes


BLEND_VERSION = 1
VERSION_KEY = "tokpack_blend"
_MAKER = "tokpack blend"
_MARKS = ("fingerprint", "checksum", "labels_fingerprint")
_ENTRY = ("prefix", "weight", "labels", *_MARKS, "tokens", "documents")


def load_blend(path: str | os.PathLike[str], **changes: Unpack[BlendOptions]) -> BlendPlan:
    """Read a blend file, open its datasets, and check that they are those of the file.

    ``changes`` replace settings of the file. Raises InputError or FormatError that names what is
    missing, unknown or has changed, and as ``plan_blend``.
    """
    return plan_of(read_blend(path).changed(**changes))


takes_settings(load_blend)


def read_blend(path: str | os.PathLike[str]) -> BlendSpec:
    """The request in a blend file. Prefixes are relative to its folder."""
    return parse_blend(read_values(path), os.fspath(path))


def read_values(path: str | os.PathLike[str]) -> Any:
    """The content of a blend file, unchecked; a mapping, if it is valid."""
    refuse([os.fspath(path)], "reading a blend")
    return read_yaml(path, _Loader)


def parse_blend(values: Any, name: str = "") -> BlendSpec:
    """The request in a mapping with the keys of a blend file; ``name`` is that of the file."""
    return _Parser(name).spec(values)


class _Loader(yaml.SafeLoader):
    """Reads YAML so that names of datasets and splits stay text.

    Keys are text, and none may be repeated: otherwise one of two weights for a dataset would be
    lost. Values are text except true, false, null and plain numbers: in YAML 1.1 the split 0:0.9
    would be 0.9, a dataset called no would be false, and 007 would be 7.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  as in the base class


_TAG = "tag:yaml.org,2002:"
_PLAIN = (
    ("bool", r"true|false", "tf"),
    ("null", r"~|null|", ["~", "n", ""]),
    ("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    (
        "float",
        r"-?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|nan)",
        "-+.0123456789",
    ),
)
for _kind, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"^(?:{_pattern})$"), list(_first))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            problem = "a key is neither a word nor a number"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        if key_node.value in result:
            problem = f"the key {key_node.value!r} comes twice"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        result[key_node.value] = loader.construct_object(value_node, deep=True)
    return result


_Loader.add_constructor(_TAG + "map", _mapping)


class _Parser:
    def __init__(self, name: str) -> None:
        self._name = name
        self._start = f"{name}: " if name else ""
        self._folder = os.path.dirname(name)

    def spec(self, values: Any) -> BlendSpec:
        if not isinstance(values, Mapping):
            self._fail("not a blend: expected a mapping with the key datasets")
        version = values.get(VERSION_KEY, BLEND_VERSION)
        if version != BLEND_VERSION:
            self._fail(
                f"blend version is {brief(version)}, this tokpack knows {BLEND_VERSION}: upgrade "
                "tokpack, or make the blend again"
            )
        for key in values:
            if key in ("labels", "weight", "prefix"):
                self._fail(f"{key} belongs to a dataset, as in - {{prefix: wiki, {key}: ...}}")
            if key not in (*OPTIONS, VERSION_KEY):
                self._fail(unknown(f"unknown key {brief(key)}", str(key), OPTIONS))
        if "datasets" not in values:
            self._fail("not a blend: the key datasets is missing")
        values = {key: value for key, value in values.items() if value is not None}
        datasets = self._entries("datasets", values.get("datasets", []))
        return BlendSpec(
            datasets=datasets,
            schedule=self._schedule(values.get("schedule", []), datasets),
            valid=self._valid(values.get("valid", {})),
            test=self._entries("test", values.get("test", [])),
            source=self._name,
            **{key: self._value(key, values[key]) for key in values if key in _SINGLE},
        )

    def _fail(self, problem: str) -> Any:
        raise FormatError(self._start + problem)

    def _value(self, key: str, value: Any) -> Any:
        try:
            value = _SINGLE[key].read(value)
            if key == "fim" and not isinstance(value, Mapping):
                raise TypeError
            return os.path.join(self._folder, str(value)) if key == "cache" else value
        except (TypeError, ValueError, OverflowError):
            self._fail(f"{key} is {brief(value)}, expected {_SINGLE[key].expected}")

    def _entries(self, where: str, value: Any) -> Entries:
        if isinstance(value, str):
            return (self._entry(where, value),)
        if isinstance(value, Mapping):
            pairs = value.items()
            return tuple(self._entry(where, {"prefix": str(p), "weight": w}) for p, w in pairs)
        if not isinstance(value, list):
            self._fail(f"{where} is {brief(value)}, expected a list, or prefixes with weights")
        return tuple(self._entry(where, entry) for entry in value)

    def _entry(self, where: str, value: Any) -> Entry:
        if isinstance(value, str):
            value = {"prefix": value}
        if not isinstance(value, Mapping):
            self._fail(f"{where} has {brief(value)}, expected a prefix, or one with a weight")
        if len(value) == 1 and not set(value) & set(_ENTRY):  # such as "- wiki: 0.35"
            ((prefix, weight),) = value.items()
            value = {"prefix": str(prefix), "weight": weight}
        for key in value:
            if key not in _ENTRY:
                self._fail(unknown(f"{where} has an unknown key {brief(key)}", str(key), _ENTRY))
        prefix = value.get("prefix")
        if not isinstance(prefix, str) or not prefix:
            self._fail(f"{where} has the prefix {brief(prefix)}, expected a name")
        weight = value.get("weight")
        if weight is not None:
            try:
                weight = _real(weight)
            except (TypeError, ValueError):
                self._fail(f"the weight of {prefix} is {brief(weight)}, expected a number")
        marks = {key: str(value[key]) for key in _MARKS if value.get(key) is not None}
        if (labels := value.get("labels")) is not None:
            labels = joined(self._folder, str(labels))
        return Entry(joined(self._folder, prefix), weight, labels=labels, **marks)

    def _valid(self, value: Any) -> dict[str, Entries]:
        """One validation set, or a mapping of names to sets."""
        if isinstance(value, Mapping) and value:
            are_sets = [isinstance(one, (str, list, Mapping)) for one in value.values()]
            if all(are_sets):
                return {str(k): self._entries(f"valid {k}", one) for k, one in value.items()}
            if any(are_sets):
                self._fail("valid mixes sets and weights: give each set a name")
        return {"valid": self._entries("valid", value)} if value else {}

    def _schedule(self, value: Any, datasets: Entries) -> Changes:
        rows = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(rows, list):
            self._fail(f"schedule is {brief(value)}, expected a list of changes")
        changes = []
        for row in rows:
            if isinstance(row, Mapping) and set(row) == {"from", "weights"}:
                row = row["from"], row["weights"]  # noqa: PLW2901
            if not (isinstance(row, (list, tuple)) and len(row) == 2):
                self._fail(
                    f"schedule has {brief(row)}, expected the first sample and the weights, or the "
                    "keys from and weights"
                )
            begin, weights = row
            try:
                first = _whole(begin)
            except (TypeError, ValueError, OverflowError):
                self._fail(f"schedule begins at {brief(begin)}, expected the number of a sample")
            changes.append((first, self._weights(first, weights, datasets)))
        return tuple(changes)

    def _weights(self, first: int, value: Any, datasets: Entries) -> tuple[float, ...]:
        where = f"the weights from sample {first} on"
        if isinstance(value, Mapping):
            prefixes = [entry.prefix for entry in datasets]
            named = {joined(self._folder, str(key)): one for key, one in value.items()}
            for key in named:
                if prefixes.count(key) != 1:
                    problem = f"{where} name {brief(key)}, which is not a dataset of the blend"
                    self._fail(unknown(problem, key, prefixes))
            value = [named.get(prefix, 0) for prefix in prefixes]
        try:
            return tuple(map(_real, value))
        except (TypeError, ValueError):
            return tuple(self._fail(f"{where} are {brief(value)}, expected numbers"))


def _whole(value: Any) -> int:
    """A whole number; YAML reads 1e9 as text."""
    number = float(value) if isinstance(value, str) else value
    if isinstance(number, bool) or int(number) != number:
        raise ValueError
    return int(number)


def _real(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


_APART = ("datasets", "schedule", "valid", "test")  # keys that have lists
_SINGLE = {name: one for name, one in OPTIONS.items() if name not in _APART}


SAVED = Kind("a blend file that tokpack saved", partial(is_sealed, maker=_MAKER), kept=False)


def check_saved(
    path: str | os.PathLike[str], inputs: Iterable[str] = (), *, overwrite: bool = False
) -> None:
    """Raise as ``save_blend`` does if ``path`` may not be written."""
    check_outputs([(os.fsdecode(path), SAVED)], inputs, overwrite=overwrite)


def save_blend(
    plan: BlendPlan,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    inputs: Iterable[str] = (),
) -> None:
    """Write a plan as a blend file, atomically, with the identities of its datasets.

    A relative prefix is written relative to the folder of the file. An existing file is replaced if
    ``save_blend`` wrote it and nobody has edited it since, any other only with ``overwrite``.
    ``inputs`` are files that were read for the plan. UsageError if ``path`` is one of these, or a
    file of a dataset; OutputError if it may not be replaced or cannot be written.
    """
    spec = plan.spec
    folder = os.path.dirname(os.path.realpath(path))
    values: dict[str, Any] = {VERSION_KEY: BLEND_VERSION}
    for name, one in _SINGLE.items():
        value = getattr(spec, name)
        if name in _ALWAYS or value != one.default:
            whole = isinstance(value, float) and name in ("tokens", "epochs")
            value = int(value) if whole and value == int(value) else plain_option(value)
            values[name] = value
    if spec.cache is not None:
        values["cache"] = _relative(os.fspath(spec.cache), folder)
    groups = dict(spec.groups())
    values["datasets"] = _saved(groups.pop("train"), plan, folder)
    if spec.schedule:
        values["schedule"] = [{"from": g, "weights": list(row)} for g, row in spec.schedule]
    if spec.test:
        values["test"] = _saved(groups.pop("test"), plan, folder)
    if groups:
        values["valid"] = {name: _saved(group, plan, folder) for name, group in groups.items()}
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    data = [file for dataset in plan.opened.values() for file in dataset_files(dataset.path_prefix)]
    check_saved(path, [*inputs, *data], overwrite=overwrite)
    replace_file(path, [sealed(text, _MAKER).encode()])


_ALWAYS = ("seq_length", "by", "temperature", "order", "seed")


def _saved(entries: Entries, plan: BlendPlan, folder: str) -> list[dict[str, Any]]:
    rows = []
    for entry in entries:
        dataset = plan.opened[entry.prefix]
        row = {
            "prefix": _relative(dataset.path_prefix, folder),
            "weight": entry.weight,
            "documents": dataset.documents,
            "tokens": dataset.tokens_in(0, len(dataset)),
            **marks(dataset),
        }
        if entry.labels is not None:
            labels = plan.opened[entry.labels]
            row["labels"] = _relative(labels.path_prefix, folder)
            row["labels_fingerprint"] = marks(labels)["fingerprint"]
        rows.append({key: value for key, value in row.items() if value is not None})
    return rows


def _relative(prefix: str, folder: str) -> str:
    if os.path.isabs(prefix) or is_url(prefix):
        return prefix
    parent, name = os.path.split(prefix)
    return os.path.relpath(os.path.join(os.path.realpath(parent), name), folder)


def is_blend_file(word: str) -> bool:
    """Whether a word is the name of a blend file, not of a dataset."""
    return word.endswith((".yaml", ".yml"))


def read_words(words: Sequence[str]) -> BlendSpec:
    """The request in the inputs of a command: a blend file, or datasets with or without weights."""
    files = [word for word in words if is_blend_file(word)]
    if files and len(words) > 1:
        raise UsageError(f"{files[0]}: a blend file must be the only input, not {' '.join(words)}")
    return read_blend(files[0]) if files else BlendSpec(datasets=entries(words))


def entries(words: Sequence[str]) -> Entries:
    """The datasets, with weights if the first of every two words is a number."""
    if not words:
        raise UsageError("no datasets: give WEIGHT PREFIX [WEIGHT PREFIX ...], or prefixes alone")
    weights = [_as_number(word) for word in words[::2]]
    if len(words) % 2 == 0 and None not in weights:
        return tuple(map(Entry, words[1::2], weights))
    if any(weight is not None for weight in weights):
        raise UsageError(
            f"weights and datasets do not alternate in: {' '.join(words)}; give a weight before "
            "each dataset, or none at all"
        )
    for name, word in zip(words[::2], words[1::2], strict=False):
        if _as_number(word) is not None and not MMapIndexedDataset.exists(word):
            raise UsageError(f"a weight comes before its dataset: {word} {name}, not {name} {word}")
    return tuple(map(Entry, _prefixes(words)))


def _prefixes(words: Sequence[str]) -> list[str]:
    """The datasets of files found by a pattern, each once; other names unchanged."""
    prefixes: list[str] = []
    seen: set[str] = set()
    for word in words:
        base = prefix_of(word)
        if base == word or not MMapIndexedDataset.exists(base):
            prefixes.append(word)
        elif base not in seen:
            seen.add(base)
            prefixes.append(base)
    return prefixes


def _as_number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
