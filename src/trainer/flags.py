"""Flags, YAML files and DeepSpeed's JSON -> Config. No torch here.

Each source becomes a dictionary of settings under their one name: a field of Config, one of
``_DERIVED``, or a dotted path such as ``zero_optimization.overlap_comm``, which is DeepSpeed's.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from tokpack.errors import FormatError, InputError, UsageError

from .config import CHOICES, EXCLUSIVE, FIELDS, Config
from .names import DEEPSPEED, NOTHING, ONLY, OTHER_NAMES, SWITCHES, WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DERIVED = {
    "int": "nproc gradient_accumulation_steps train_tokens lr_decay_tokens lr_warmup_tokens "
    "zero_optimization.reduce_bucket_size zero_optimization.allgather_bucket_size",
    "str": "deepspeed_config init_method output_layer_init_method recompute_granularity",
    "float": "initial_scale_power",
    "tuple[float, ...]": "betas train_data_weights valid_data_weights test_data_weights",
}
_TYPES = {name: str(item.type).removesuffix(" | None") for name, item in FIELDS.items()}
_TYPES |= {name: kind for kind, names in _DERIVED.items() for name in names.split()}
_ALIASES = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
_NOTHING = {name: count for count, names in NOTHING.items() for name in names.split()}
_KNOWN = {*_TYPES, *_ALIASES, *SWITCHES, *ONLY, *_NOTHING}
# A flag replaces what a file says in another way.
_REPLACED = [
    *((*names, names[0].replace("samples", "tokens")) for names in EXCLUSIVE),
    ("global_batch_size", "gradient_accumulation_steps"),
]
_MICRO_BATCH = 4


@dataclass
class _Source:
    """What one source says: settings, how each was written, and what has nothing to do here."""

    settings: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    refused: dict[tuple[str, Any], str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any, written: str) -> None:
        """Take one setting in, under any of its names. Raises UsageError."""
        name = _ALIASES.get(name, name)
        if name in ONLY:
            if not re.fullmatch(ONLY[name], _plain(value)):
                expected = ONLY[name].replace("|", " or ") or "none"
                raise UsageError(f"{written} is not supported: only {expected}")
        elif name in _NOTHING:
            if name not in ("debug", "local_rank"):  # a launcher's word needs no answer
                self.ignored.append(written)
        elif name in SWITCHES and str(value).lower() == "false":
            self.refused[SWITCHES[name]] = written
        elif name in SWITCHES:
            name, switched = SWITCHES[name]
            self.settings[name], self.written[name] = switched, written
        elif value is not None:
            value = _convert(name, value, written)
            if name == "pipeline_model_parallel_size":
                value = value or 1  # GPT-NeoX's 0
            if name == "betas" and len(value) != 2:
                raise UsageError(f"{written}: expected two numbers")
            made = {name: value}
            if name == "betas":
                made = {"adam_beta1": value[0], "adam_beta2": value[1]}
            elif name == "initial_scale_power":
                made = {"initial_loss_scale": 2.0**value}
            self.settings |= made
            self.written |= dict.fromkeys(made, written)


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
        if any(name in flags.settings for name in names):
            file.settings = {k: v for k, v in file.settings.items() if k not in names}
    given = {**file.settings, **flags.settings}
    if path := given.pop("deepspeed_config", None):
        deepspeed = _read_json(path)
        _refuse_contradictions(given, {**file.written, **flags.written}, deepspeed, path)
        given = {**deepspeed.settings, "engine": "deepspeed", **given}
    nproc = given.pop("nproc", None)
    ignored = [*file.ignored, *flags.ignored]
    notes = (f"accepted, with nothing to do: {', '.join(ignored)}",) if ignored else ()
    return _config(given, nproc or world_size, notes), nproc


def _read_flags(argv: Sequence[str]) -> tuple[_Source, list[str]]:
    source, words, i = _Source(), [], 0
    while i < len(argv):
        if not argv[i].startswith("-"):
            words.append(argv[i])
            i += 1
            continue
        written, equals, value = argv[i].partition("=")
        name = _name(written)
        limit = _values_of(name, written)
        end = i = i + 1
        while not equals and end < len(argv) and end - i < limit and argv[end][:2] != "--":
            end += 1
        values = [value] if equals else argv[i:end]
        if limit and not values:
            raise UsageError(f"{written} needs a value")
        if name not in _KNOWN:  # _values_of knows it: --no- and a field that is true or false
            source.add(name.removeprefix("no_"), False, written)
        else:
            single = limit <= 1 and (values[0] if values else True)
            source.add(name, single or list(values), " ".join((written, *values)))
        i = end
    return source, words


def _values_of(name: str, written: str) -> float:
    """How many words may follow a flag. Raises UsageError for an unknown one."""
    target = _ALIASES.get(name, name)
    kind = _TYPES.get(target, "")
    if name not in _KNOWN and _TYPES.get(name.removeprefix("no_")) != "bool":
        raise UsageError(f"unknown flag {written}{_hint(name)}")
    if name not in _KNOWN or kind == "bool" or target in SWITCHES:
        return 0
    return _NOTHING.get(target, math.inf if kind.startswith("tuple") else 1)


def _read_file(path: str, source: _Source) -> None:
    """Take in a configuration, or a saved blend as the data; a later file goes before."""
    values = _load(path, yaml.safe_load, "YAML")
    if "tokpack_blend" in values:
        values = {"data_path": [path]}
    for key, value in _flat(values).items():
        name = _name(key)
        if name not in _KNOWN and name.split(".")[0] not in DEEPSPEED.split():
            raise UsageError(f"{path}: unknown setting {key}{_hint(name)}")
        source.add(name.removeprefix("deepspeed_json."), value, f"{key} {_plain(value)}")


def _read_json(path: str) -> _Source:
    source = _Source()
    for key, value in _flat(_load(path, json.loads, "JSON")).items():
        source.add(key, value, f"{key} {_plain(value)}")
    return source


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


def _refuse_contradictions(
    given: Mapping[str, Any], written: Mapping[str, str], deepspeed: _Source, path: str
) -> None:
    said = [(name, v, v != given.get(name)) for name, v in deepspeed.settings.items()]
    said += [(name, v, v == given.get(name)) for name, v in deepspeed.refused]
    for name, value, wrong in said:
        if wrong and given.get(name) is not None:
            other = deepspeed.refused.get((name, value)) or deepspeed.written[name]
            raise UsageError(f"{written[name]} contradicts {other} in {path}: change one of them")


def _config(given: dict[str, Any], world_size: int, notes: tuple[str, ...]) -> Config:
    seq_length = given.get("seq_length", FIELDS["seq_length"].default)
    for name in ("train", "lr_decay", "lr_warmup"):
        if tokens := given.pop(f"{name}_tokens", None):
            samples = given.get(f"{name}_samples") or math.inf
            given[f"{name}_samples"] = min(samples, max(tokens // seq_length, 1))
    if given.pop("recompute_granularity", None):
        given.setdefault("checkpoint_activations", True)
    if given.pop("output_layer_init_method", None):
        notes += ("output layers begin with init_method_std / sqrt(2 x num_layers), as Megatron's",)
    if given.pop("init_method", None) == "small_init":
        width = given.get("hidden_size", FIELDS["hidden_size"].default)
        given.setdefault("init_method_std", math.sqrt(2 / (5 * width)))
    for name in ("train_data", "valid_data", "test_data"):
        if weights := given.pop(f"{name}_weights", None):
            paths = given.get(f"{name}_path", ())
            if len(weights) != len(paths):
                raise UsageError(f"{len(weights)} {name}_weights for {len(paths)} datasets")
            pairs = zip(weights, paths, strict=True)
            given[f"{name}_path"] = tuple(str(word) for pair in pairs for word in pair)
    if given.get("zero_stage"):
        given.setdefault("engine", "deepspeed")
    given = _batch(given, world_size)
    extras = {name: given.pop(name) for name in list(given) if name not in FIELDS}
    given["deepspeed_json"] = _nested(extras)
    if extras and given.get("engine", "torch") == "torch":
        notes += (f"of no use to engine torch: {', '.join(extras)}",)
    return Config(**given, notes=notes)


def _batch(given: dict[str, Any], world_size: int) -> dict[str, Any]:
    """Fill in micro and global batch size; raise UsageError where they do not fit the world."""
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size")
    tensor, stages, micro = (given.get(name, 1) for name in sizes)
    if min(tensor, stages, micro) < 1:
        raise UsageError(f"{', '.join(sizes)} are {tensor}, {stages}, {micro}: expected at least 1")
    if world_size % (tensor * stages):
        raise UsageError(
            f"{world_size} processes do not divide into tensor_model_parallel_size {tensor} x "
            f"pipeline_model_parallel_size {stages}"
        )
    data_size = world_size // (tensor * stages)
    batch, ramp = given.get("global_batch_size"), given.get("rampup_batch_size") or ()
    steps = given.pop("gradient_accumulation_steps", None)
    if "micro_batch_size" not in given:
        parts = [size // data_size for size in (batch or 0, *ramp[:2])]
        micro = max(parts[0] // steps if batch and steps else math.gcd(_MICRO_BATCH, *parts), 1)
    given["micro_batch_size"] = micro
    batch = given.setdefault("global_batch_size", micro * data_size * (steps or 1))
    arithmetic = f"micro_batch_size {micro} x {data_size} data parallel processes"
    for i, size in enumerate((batch, *ramp[:2])):
        if size % (micro * data_size):
            name = "rampup_batch_size" if i else "global_batch_size"
            raise UsageError(f"{name} {size} is not a multiple of {arithmetic}")
    if steps and batch != micro * data_size * steps:
        raise UsageError(
            f"global_batch_size {batch} is not {arithmetic} x {steps} gradient accumulation steps"
        )
    return given


def _name(written: str) -> str:
    return written.removeprefix("--").replace("-", "_").lower()


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


def _convert(name: str, value: Any, written: str) -> Any:
    """A value from a file or a word, as the type of its setting. Raises UsageError."""
    kind = _TYPES.get(name, "")
    try:
        if kind.startswith("tuple"):
            items = value if isinstance(value, (list, tuple)) else [value]
            if kind != "tuple[str, ...]":
                items = [part for item in items for part in str(item).replace(",", " ").split()]
            return tuple(_single(kind[6:].split(",")[0], item) for item in items)
        value = _single(kind, value)
    except ValueError as error:
        raise UsageError(f"{written}: expected {error}") from error
    return WORDS.get(str(value).lower(), value) if name in CHOICES else value


def _single(kind: str, value: Any) -> Any:
    """One value as ``kind``. Raises ValueError, which says what was expected."""
    if kind == "bool":
        return _boolean(value)
    if kind == "str":
        return str(value)
    if kind not in ("int", "float"):
        return value
    try:
        number = float(str(value))
    except ValueError:
        raise ValueError("a number") from None
    if kind == "float":
        return number
    if not number.is_integer():
        raise ValueError("a whole number")
    return int(str(value)) if str(value).replace("_", "").isdigit() else int(number)


def _boolean(value: Any) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ValueError("true or false")
    return str(value).lower() == "true"
