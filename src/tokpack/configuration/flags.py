"""Flags, YAML files and DeepSpeed's JSON -> Config. No torch here.

Each source becomes settings under their one name: a field of Config, one of ``DERIVED``, or a
dotted path such as ``zero_optimization.overlap_comm``, which is DeepSpeed's.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from tokpack.errors import FormatError, InputError, UsageError

from .config import EXCLUSIVE, FIELDS, Config
from .names import DEEPSPEED, DERIVED, NOTHING, ONLY, SWITCHES, WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TYPES = {name: str(item.type).removesuffix(" | None") for name, item in FIELDS.items()}
_TYPES |= {name: kind for name, (kind, _) in DERIVED.items()}
_NAMES = {name: item.metadata.get("names", "") for name, item in FIELDS.items()}
_NAMES |= {name: names for name, (_, names) in DERIVED.items()}
_ALIASES = {other: name for name, others in _NAMES.items() for other in others.split()}
_NOTHING = {name: count for count, names in NOTHING.items() for name in names.split()}
_SWITCHES = SWITCHES | {f"no_{n}": (n, False) for n, kind in _TYPES.items() if kind == "bool"}
_KNOWN = {*_TYPES, *_ALIASES, *_SWITCHES, *ONLY, *_NOTHING}
# A flag replaces what a file says in another way.
_REPLACED = [
    *((*names, names[0].replace("samples", "tokens")) for names in EXCLUSIVE),
    ("global_batch_size", "gradient_accumulation_steps"),
]
_EXPECTED = {"bool": "true or false", "int": "a whole number", "float": "a number"}
_MICRO_BATCH = 4


class _Setting(NamedTuple):
    value: Any
    written: str  # as its source has it


@dataclass
class _Source:
    """What one source says: settings, what it turns off, and what has nothing to do here."""

    settings: dict[str, _Setting] = field(default_factory=dict)
    refused: list[tuple[str, _Setting]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any, written: str) -> None:
        """Take one setting in, under any of its names. Raises UsageError."""
        name = _ALIASES.get(name, name)
        if name in ONLY and not re.fullmatch(ONLY[name], _plain(value)):
            expected = ONLY[name].replace("|", " or ") or "none"
            raise UsageError(f"{written} is not supported: only {expected}")
        if name in ONLY or value is None:
            return
        if name in _NOTHING:
            if name not in ("debug", "local_rank"):  # a launcher's word needs no answer
                self.ignored.append(written)
        elif name in _SWITCHES and str(value).lower() == "false":
            self.refused.append((_SWITCHES[name][0], _Setting(_SWITCHES[name][1], written)))
        elif name in _SWITCHES:
            self.settings[_SWITCHES[name][0]] = _Setting(_SWITCHES[name][1], written)
        else:
            for target, converted in _convert(name, value, written).items():
                self.settings[target] = _Setting(converted, written)


def resolve(argv: Sequence[str], world_size: int = 1) -> tuple[Config, int | None]:
    """The configuration that ``[FILE...] --flags`` asks for, and ``--nproc``, if it is given.

    Defaults < file < flags; what the DeepSpeed JSON says must not contradict them. ``world_size``
    processes run unless ``--nproc`` says otherwise. Raises UsageError, InputError and FormatError.
    """
    flags, paths = _read_flags(argv)
    file = _Source()
    for path in paths:
        _read_file(path, file)
    for names in _REPLACED:
        if flags.settings.keys() & names:
            file.settings = {k: v for k, v in file.settings.items() if k not in names}
    said = file.settings | flags.settings
    if "deepspeed_config" in said:
        path = said.pop("deepspeed_config").value
        deepspeed = _Source()
        for key, value in _flat(_load(path, json.loads, "JSON")).items():
            deepspeed.add(key, value, f"{key} {_plain(value)}")
        _refuse_contradictions(said, deepspeed, path)
        said = {**deepspeed.settings, "engine": _Setting("deepspeed", ""), **said}
    given = {name: setting.value for name, setting in said.items()}
    nproc = given.pop("nproc", None)
    ignored = ", ".join(file.ignored + flags.ignored)
    notes = (f"accepted, with nothing to do: {ignored}",) if ignored else ()
    return _config(given, nproc or world_size, notes), nproc


def _read_flags(argv: Sequence[str]) -> tuple[_Source, list[str]]:
    """What the flags say, and the words before, between and behind them: files."""
    source, paths, words = _Source(), [], list(argv)
    while words:
        written, equals, value = words.pop(0).partition("=")
        if not written.startswith("-"):
            paths.append(written + equals + value)
            continue
        name = written.removeprefix("--").replace("-", "_").lower()
        if name not in _KNOWN:
            raise UsageError(f"unknown flag {written}{_hint(name)}")
        limit = _most_values(_ALIASES.get(name, name))
        values = [value] if equals else []
        while not equals and words and len(values) < limit and words[0][:2] != "--":
            values.append(words.pop(0))
        if limit and not values:
            raise UsageError(f"{written} needs a value")
        one = values[0] if values else True
        source.add(name, values if limit > 1 else one, " ".join((written, *values)))
    return source, paths


def _most_values(name: str) -> float:
    """How many words may follow a flag."""
    kind = _TYPES.get(name, "")
    if kind == "bool" or name in _SWITCHES:
        return 0
    return _NOTHING.get(name, math.inf if kind.startswith("tuple") else 1)


def _read_file(path: str, source: _Source) -> None:
    """Take in a configuration, or a blend file as the data; a later file goes before."""
    values = _load(path, yaml.safe_load, "YAML")
    if {"tokpack_blend", "datasets"} & set(values):
        values = {"data_path": [path], "seq_length": values.get("seq_length")}
    for key, value in _flat(values).items():
        name = key.replace("-", "_").lower()
        if name not in _KNOWN and name.split(".")[0] not in DEEPSPEED.split():
            raise UsageError(f"{path}: unknown setting {key}{_hint(name)}")
        source.add(name.removeprefix("deepspeed_json."), value, f"{key} {_plain(value)}")


def _load(path: str, read: Any, language: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            values = read(file.read())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise FormatError(f"{path}: not {language}: {error}") from error
    if not isinstance(values, dict):
        raise FormatError(f"{path}: expected names and values, found {type(values).__name__}")
    return values


def _refuse_contradictions(said: Mapping[str, _Setting], deepspeed: _Source, path: str) -> None:
    pairs = [(name, there, False) for name, there in deepspeed.settings.items()]
    pairs += [(name, there, True) for name, there in deepspeed.refused]
    for name, there, refused in pairs:
        if name in said and (said[name].value == there.value) is refused:
            here = said[name].written
            raise UsageError(f"{here} contradicts {there.written} in {path}: change one of them")


def _config(given: dict[str, Any], world_size: int, notes: tuple[str, ...]) -> Config:
    """The configuration of settings, after those that only help to derive others."""

    def default(name: str) -> Any:
        return given.get(name, FIELDS[name].default)

    for name in ("train", "lr_decay", "lr_warmup"):
        if tokens := given.pop(f"{name}_tokens", None):
            samples = given.get(f"{name}_samples") or math.inf
            given[f"{name}_samples"] = min(samples, max(tokens // default("seq_length"), 1))
    if given.pop("output_layer_init_method", None):
        notes += ("output layers begin with init_method_std / sqrt(2 x num_layers), as Megatron's",)
    if given.pop("init_method", None) == "small_init":
        given.setdefault("init_method_std", math.sqrt(2 / (5 * default("hidden_size"))))
    if given.get("zero_stage"):
        given.setdefault("engine", "deepspeed")
    _fill_in_batch(given, world_size)
    extras = {name: given.pop(name) for name in list(given) if name not in FIELDS}
    given["deepspeed_json"] = _nested(extras)
    if extras and default("engine") == "torch":
        notes += (f"of no use to engine torch: {', '.join(extras)}",)
    return Config(**given, notes=notes)


def _fill_in_batch(given: dict[str, Any], world_size: int) -> None:
    """Micro and global batch size, where they are left out. UsageError if they do not fit."""
    kinds = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
    given[kinds[1]] = given.get(kinds[1]) or 1  # GPT-NeoX writes 0
    tensor, stages = (max(given.get(kind, 1), 1) for kind in kinds)
    if world_size % (tensor * stages):
        raise UsageError(
            f"{world_size} processes do not divide into {kinds[0]} {tensor} x {kinds[1]} {stages}"
        )
    ranks = world_size // (tensor * stages)
    batch, ramp = given.get("global_batch_size"), given.get("rampup_batch_size") or ()
    steps = given.pop("gradient_accumulation_steps", None)
    parts = [size // ranks for size in (batch or 0, *ramp[:2])]
    whole = parts[0] // steps if batch and steps else math.gcd(_MICRO_BATCH, *parts)
    micro = given.setdefault("micro_batch_size", max(whole, 1))
    step = max(micro, 1) * ranks
    batch = given.setdefault("global_batch_size", step * (steps or 1))
    product = f"micro_batch_size {micro} x {ranks} data parallel processes"
    for size, name in zip((batch, *ramp[:2]), ("global", "rampup", "rampup"), strict=False):
        if size % step:
            raise UsageError(f"{name}_batch_size {size} is not a multiple of {product}")
    if steps and batch != step * steps:
        raise UsageError(
            f"global_batch_size {batch} is not {product} x {steps} gradient accumulation steps"
        )


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, [known for known in _KNOWN if "." not in known], n=1)
    return f"; did you mean --{near[0].replace('_', '-')}?" if near else ""


def _plain(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, float)) else str(value).lower()


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        result |= _flat(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return result


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        *blocks, last = name.split(".")
        inner = result
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[last] = value
    return result


def _convert(name: str, value: Any, written: str) -> dict[str, Any]:
    """The settings that a word, or a value of a file, makes. Raises UsageError."""
    kind = _TYPES.get(name, "")
    try:
        if not kind.startswith("tuple"):
            value = _single(kind, value)
        else:
            kind = kind.removeprefix("tuple[").split(",")[0]
            items = value if isinstance(value, (list, tuple)) else [value]
            if kind != "str":
                items = [part for item in items for part in str(item).replace(",", " ").split()]
            value = tuple(_single(kind, item) for item in items)
    except ValueError:
        raise UsageError(f"{written}: expected {_EXPECTED[kind]}") from None
    if name in FIELDS and FIELDS[name].metadata.get("choices"):
        value = WORDS.get(str(value).lower(), value)
    if name == "initial_scale_power":
        return {"initial_loss_scale": 2.0**value}
    if name != "betas":
        return {name: value}
    if len(value) != 2:
        raise UsageError(f"{written}: expected two numbers")
    return {"adam_beta1": value[0], "adam_beta2": value[1]}


def _single(kind: str, value: Any) -> Any:
    """One value as ``kind``; as it is where nobody knows that. Raises ValueError."""
    text = str(value)
    if kind == "str":
        return text
    if kind == "float":
        return float(text)
    if kind == "bool":
        return ("false", "true").index(text.lower()) == 1
    if kind != "int":
        return value
    if not float(text).is_integer():
        raise ValueError(text)
    return int(text) if text.replace("_", "").isdigit() else int(float(text))
