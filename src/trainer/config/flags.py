"""Read flags, YAML files and DeepSpeed's JSON into a Config. No torch here.

Each source becomes settings under one name each: a field of Config, a name in ``DERIVED``, or a
dotted path of DeepSpeed's such as ``zero_optimization.overlap_comm``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.display import brief, nearest
from tokpack.errors import FormatError, UsageError, option, worded
from tokpack.option import EXPECTED, Option
from tokpack.storage.disk import not_settings, read_json

from . import names as tables
from .config import EXCLUSIVE, FIELDS, UNSAVED, Config
from .derive import Overrides, configure
from .hardware import cluster_of
from .names import ALONE, NAMES, Name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .hardware import Cluster


# The request of a command line: resolved once, and sent unchanged to every rank.


@dataclass(frozen=True)
class RunRequest:
    """A configuration, the number of processes for ``--nproc``, and what else the command line
    gave.

    ``inputs`` are files that the configuration was perhaps read from: the run does not replace
    them. ``words`` are the typed words. With a ``cluster`` the run is only planned, and ``as_json``
    says whether the plan is printed as JSON.
    """

    config: Config
    processes: int | None = None
    inputs: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    cluster: Cluster | None = None
    as_json: bool = False

    def to_json(self) -> bytes:
        """The request as JSON, for the standard input of a rank."""
        more = {name: getattr(self.config, name) for name in UNSAVED}
        values = [self.config.to_dict(), more, self.processes, self.inputs, self.words]
        return json.dumps(values).encode()

    def again(self, *, launched: bool) -> str:
        """How to go on from the checkpoints that this run saves; ``launched`` by another program
        than tokpack, whose words are not known.
        """
        config, save, flags = self.config, self.config.save or "", flag_names()
        own = bool(config.load) and os.path.realpath(config.load or "") == os.path.realpath(save)
        same = bool(config.load) and own != config.finetune  # it loads what it saved
        whole = [option("finetune", False)] if config.finetune else []
        if not self.words or (launched and not self.processes):
            changed = "" if same else f" with {' '.join([option('load', save), *whole])}"
            return f"the same again{changed} goes on"
        more = [] if same else [flags["load"], save, *(worded(one, flags) for one in whole)]
        return f"go on with: {shlex.join(['tokpack', 'train', *self.words, *more])}"

    @classmethod
    def from_json(cls, text: bytes) -> RunRequest:
        """The request from the text that ``to_json`` made."""
        saved, more, processes, inputs, words = json.loads(text)
        more["notes"] = tuple(more["notes"])
        config = replace(Config.from_dict(saved), **more)
        return cls(config, processes, tuple(inputs), tuple(words))


# Flags that keep the model in one piece, when they follow the flags of a run that splits it.
UNSPLIT = ("--tensor-model-parallel-size", "1", "--pipeline-model-parallel-size", "1")
SETTINGS = FIELDS | {setting.name: setting for setting in tables.DERIVED}
_OFF = {f"no_{name}": Name("switch", name, False) for name, x in SETTINGS.items() if x.kind is bool}
_NAMES = NAMES | _OFF
_KNOWN = {*SETTINGS, *_NAMES}
_MOST_READ = 1 << 20  # characters of a file in which names of options are looked for
_MINUTES = re.compile(r"(\d+(?:\.\d+)?)(m|min|h)")
# Names that show that a script was written for another program.
_FOREIGN = {one.name for one in tables.DERIVED if not one.help}
_FOREIGN |= {name for name, row in NAMES.items() if row.kind != "switch" and row.target != name}
_FOREIGN = {name for name in _FOREIGN if "." not in name} - {"local_rank", "samples"}
_REPLACED = {name: names.split() for name, names in tables.REPLACED.items()}
for _group in ((*names, names[0].replace("samples", "tokens")) for names in EXCLUSIVE):
    _REPLACED |= {name: list(_group) for name in _group}


_TOLD = {  # kinds of names of which a note says what is done with them
    "nothing": "accepted, without effect",
    "unlike": "not implemented, the results are the same",
}


class _Setting(NamedTuple):
    """The value that a flag or a file gives to a setting."""

    value: Any
    written: str  # word for word, for messages


@dataclass
class _Source:
    """The settings from flags, from a file, or from DeepSpeed's JSON."""

    settings: dict[str, _Setting] = field(default_factory=dict)
    refused: list[tuple[str, _Setting]] = field(default_factory=list)  # switches, false in it
    # What is without effect here, and why; and what has another effect here, and which.
    told: dict[str, dict[str, str]] = field(default_factory=lambda: {kind: {} for kind in _TOLD})
    names: set[str] = field(default_factory=set)  # all names in it, as they are written there

    def add(self, name: str, value: Any, written: str) -> None:
        """Add a setting, under any of its names. Raises UsageError."""
        self.names.add(name)
        row = _NAMES.get(name) or Name("setting", name)
        if row.kind == "only":
            if not re.fullmatch(row.target, _plain(value)):
                expected = row.target.replace("|", " or ") or "none"
                raise UsageError(f"{written} is not supported: only {expected}")
        elif value is None:
            return
        elif row.kind in self.told:
            is_off = row.kind == "unlike" and str(value).lower() in ("false", "none")
            if not is_off and name != "local_rank":  # the launcher gives this, not the user
                self.told[row.kind][written] = row.target
        elif row.kind == "setting":
            for target, converted in _convert(row.target, value, written).items():
                self._set(target, _Setting(converted, written))
        elif str(value).lower() == "false":
            self.refused.append((row.target, _Setting(row.value, written)))
        else:
            self._set(row.target, _Setting(row.value, written))

    def _set(self, name: str, setting: _Setting) -> None:
        """Set a value. If a flag is given twice, the last value counts.

        UsageError if a switch, or a name in a file, contradicts another name of the same setting.
        """
        before = self.settings.get(name, setting)
        two, both = (before.written, setting.written), f"{before.written} {setting.written}"
        ordered = both.startswith("-") and both.count(" ") > 1
        if before.value != setting.value and not ordered and len(set(map(_word, two))) > 1:
            raise UsageError(f"{two[1]} contradicts {two[0]}: leave out one of them")
        self.settings[name] = setting

    def update(self, later: _Source) -> None:
        """Add the settings of a later file, which override these."""
        self.settings |= later.settings
        self.names |= later.names
        for kind, words in self.told.items():
            words.update(later.told[kind])


def resolve(
    argv: Sequence[str],
    world_size: int = 1,
    values: Mapping[str, Any] | None = None,
    without: Callable[[str, Any, bool], bool] = lambda *_: False,
) -> RunRequest:
    """The request of a command line ``[FILE...] --flags``, or of ``values`` in Python.

    Flags override ``values`` (as a file has them), which override files, which override defaults;
    the DeepSpeed JSON must not contradict them. A setting of a file is left out if ``without``
    returns true for its name, its value, and whether it is known. ``world_size`` processes run,
    unless ``--nproc`` gives another number, or ``--plan`` the number of GPUs. Raises UsageError,
    InputError and FormatError.
    """
    flags, paths = _read_flags(argv)
    file = _Source()
    for path in paths:
        file.update(_read_file(path, without))
    if values is not None:
        file.update(_read_values("settings", values, without))
    for name in flags.settings:
        for other in _REPLACED.get(name, ()):
            file.settings.pop(other, None)
    notes: list[str] = []
    settings = _with_blend(file.settings, flags.settings, notes)
    if "deepspeed_config" in settings:
        settings = _with_deepspeed(settings, settings["deepspeed_config"].value, notes)
    overrides = Overrides({name: setting.value for name, setting in settings.items()})
    overrides.flags = flags_typed(flag_names(), argv) if values is None else {}
    for name in ("conf_dir", "debug", "deepspeed_config"):
        overrides.pop(name, None)
    for one in tables.DERIVED:
        if one.choices or one in tables.OWN:
            one.checked(overrides.get(one.name))
    nproc = overrides.pop("nproc", None)
    as_json, cluster = overrides.pop("json", False), _planned(overrides, nproc)
    world_size = world_size if cluster is None else cluster.world_size
    for kind, what in _TOLD.items():
        groups: dict[str, list[str]] = {}
        for word, reason in (file.told[kind] | flags.told[kind]).items():
            groups.setdefault(reason, []).append(word)
        if groups:
            each = (f"{', '.join(words)} ({reason})" for reason, words in groups.items())
            overrides.note(f"{what}: {'; '.join(each)}")
    overrides.notes += tuple(notes)
    _take_defaults(overrides, file.names | flags.names)
    neox = bool(file.names & ALONE["neox"]) or overrides.get("like") == "neox"
    neox = neox and "activation" not in flags.settings
    config = configure(overrides, nproc or world_size, neox)
    files = (word.partition("=")[2] or word for word in argv)
    inputs = tuple(filter(os.path.isfile, files))
    return RunRequest(config, nproc, inputs, tuple(argv), cluster, as_json)


def _planned(values: Overrides, nproc: int | None) -> Cluster | None:
    """The GPUs for which a run is planned, or None if the run is to be made."""
    gpus = {name: values.pop(name) for name in ("gpu", "nodes", "gpus_per_node") if name in values}
    if not values.pop("plan", False):
        for name in gpus:
            raise UsageError(f"{option(name)} needs {option('plan')}")
        return None
    if nproc is not None:
        raise UsageError(
            f"{option('nproc')} starts processes: with {option('plan')}, say {option('nodes')} and "
            f"{option('gpus_per_node')}"
        )
    cluster = cluster_of(**gpus)
    if "gpus_per_node" not in gpus:
        values.assumed = (
            f"; it counts {cluster.gpus_per_node} GPUs of a node: {option('gpus_per_node')} says "
            "how many there are"
        )
    return cluster


def flag_names() -> dict[str, str]:
    """The flag of each setting."""
    return {name: one.flag for name, one in SETTINGS.items()}


def flags_typed(flags: Mapping[str, str], argv: Sequence[str]) -> Mapping[str, str]:
    """The flags, by option name, that messages use: those of ``flags`` that ``argv`` may have
    given.

    Options that a file among the words has, and that were not typed, keep their own names.
    """
    in_files, typed = set[str](), set[str]()
    for word in argv:
        typed.add(word.partition("=")[0].lstrip("-").replace("-", "_"))
        is_file = word.endswith((".yaml", ".yml", ".json")) and os.path.isfile(word)
        if is_file and not not_settings(word):
            with suppress(OSError), open(word, errors="replace") as file:
                in_files |= set(re.findall(r"\w+", file.read(_MOST_READ).replace("-", "_")))
    return {name: flag for name, flag in flags.items() if name in typed or name not in in_files}


def _take_defaults(overrides: Overrides, names: set[str]) -> None:
    """Use the defaults of the program that ``like`` names.

    Without ``like``, note which defaults differ in the program whose ``names`` were used.
    """
    like = overrides.get("like")
    program = like or _program(names)
    if program is None:
        return
    free = {
        name: value
        for name, value in tables.DEFAULTS[program].items()
        if not any(one in overrides for one in (name, *_REPLACED.get(name, ())))
    }
    if like:
        overrides.update(free)
        return
    if overrides.get("precision") != "fp16":
        free.pop("initial_loss_scale", None)
    differences = (
        f"{option(name)} {SETTINGS[name].default_words or 'none'} "
        f"({f'{value:g}' if isinstance(value, (int, float)) else value} there)"
        for name, value in free.items()
    )
    overrides.unlike = (
        f"defaults that differ from {tables.PROGRAMS[program]}'s: {', '.join(differences)}; "
        f"{option('like')} {program} takes those"
    )


def _program(names: set[str]) -> str | None:
    """The program whose flags and files these are, or None if all names are ours."""
    programs = (one for one in ("neox", "microsoft", "bigscience") if names & ALONE[one])
    return next(programs, "megatron") if names & (_FOREIGN | ALONE["neox"]) else None


def _with_deepspeed(named: dict[str, _Setting], path: str, notes: list[str]) -> dict[str, _Setting]:
    """The same settings, with DeepSpeed's JSON added, which must not contradict them.

    Settings of the JSON replace the others if this changes no result.
    """
    deepspeed, replaced = _Source(), dict[str, str]()
    for key, value in _flat(_load(path, read_json)).items():
        deepspeed.add(key, value, f"{key} {_plain(value)}")
    pairs = [(name, there, False) for name, there in deepspeed.settings.items()]
    for name, there, refused in (*pairs, *((*pair, True) for pair in deepspeed.refused)):
        if name not in named or (named[name].value == there.value) is not refused:
            continue
        written = named[name].written
        if name not in tables.JSON_ALONE.split():
            raise UsageError(f"{written} contradicts {there.written} in {path}: change one of them")
        replaced[name] = f"{there.written}, not {written}"
    if replaced:
        notes.append(f"{path} overrides the flags: {'; '.join(replaced.values())}")
    kept = {name: one for name, one in named.items() if name not in replaced}
    return {**deepspeed.settings, "engine": _Setting("deepspeed", ""), **kept}


def _with_blend(
    of_files: dict[str, _Setting],
    of_flags: dict[str, _Setting],
    notes: list[str],
) -> dict[str, _Setting]:
    """All settings, with those of a blend file that is given as the data.

    Its length overrides that of a configuration, which may have been made for other data; a note
    says so. A run that goes on keeps that of its configuration.
    """
    named = of_files | of_flags
    words = [w for n in ("data_path", "train_data_path") if n in named for w in named[n].value]
    from tokpack.samples.blend import is_blend_file, read_values

    if len(words) != 1 or not is_blend_file(words[0]):
        return named
    blend, values = _Source(), _load(words[0], read_values)
    for key in tables.BLEND.split():
        if key in values:
            blend.add(key, values[key], f"{words[0]}: {key} {_plain(values[key])}")
    blend.settings.setdefault("split", _Setting(None, ""))  # such a file needs no split
    length, other = blend.settings.get("seq_length"), of_files.get("seq_length")
    goes_on = "load" in named and not ("finetune" in named and named["finetune"].value)
    if length and other and "seq_length" not in of_flags and not goes_on:
        named["seq_length"] = length
        if length.value != other.value:
            notes.append(f"{length.written} overrides {other.written} of a configuration")
    return blend.settings | named


def _read_flags(argv: Sequence[str]) -> tuple[_Source, list[str]]:
    """The settings of the flags; and the words that are not flags, which are files."""
    source, paths, words = _Source(), [], list(argv)
    while words:
        written, equals, value = words.pop(0).partition("=")
        if not written.startswith("-"):
            paths.append(written + equals + value)
            continue
        name = written.removeprefix("--").replace("-", "_").lower()
        name = "conf_dir" if written == "-d" else name  # GPT-NeoX's launcher has -d
        if name not in _KNOWN:
            raise UsageError(f"unknown flag {written}{_hint(name, '--', '-')}")
        limit = _most_values(name)
        values = [value] if equals else []
        while not equals and words and len(values) < limit and words[0][:2] != "--":
            values.append(words.pop(0))
        if not values and name in tables.BARE:
            values = [tables.BARE[name]]
        if limit and not values:
            raise UsageError(f"{written} needs a value")
        one = values[0] if values else True
        source.add(name, values if limit > 1 else one, " ".join((written, *values)))
    if "conf_dir" in source.settings:
        paths = [os.path.join(source.settings["conf_dir"].value, path) for path in paths]
    return source, [_with_ending(path) for path in paths]


def _with_ending(path: str) -> str:
    """The path of a configuration: GPT-NeoX lets people leave out its ending .yml."""
    if mistaken := not_settings(path):
        raise UsageError(mistaken)
    return f"{path}.yml" if not os.path.exists(path) and os.path.exists(f"{path}.yml") else path


def _most_values(name: str) -> float:
    """The number of words that may follow a flag."""
    row = _NAMES.get(name) or Name("setting", name)
    if row.kind == "switch" or row == Name("only", "false"):
        return 0
    if row.kind in ("nothing", "unlike"):
        return float(row.value)
    if row.kind != "setting" or row.target not in SETTINGS:
        return 1
    one = SETTINGS[row.target]
    return 0 if one.kind is bool else math.inf if one.many else 1


def _read_file(path: str, without: Callable[[str, Any, bool], bool]) -> _Source:
    """The settings of a configuration file; a blend file sets the data."""
    from tokpack.storage.disk.foreign_yaml import read_yaml

    values = _load(path, read_yaml)
    if {"tokpack_blend", "datasets"} & set(values):
        values = {"data_path": [path]}
    return _read_values(path, values, without)


def _read_values(
    path: str, values: Mapping[str, Any], without: Callable[[str, Any, bool], bool]
) -> _Source:
    """The settings of a file, or from Python; ``path`` is their source in messages."""
    source = _Source()
    half = values.get("fp16")
    if isinstance(half, dict) and tables.WORDS.get(str(half.get("type"))) == "bf16":
        # GPT-NeoX wrote bf16 so before it had a setting for it; bf16 has no loss scale.
        values = {**values, "fp16": None, "bf16": {"enabled": half.get("enabled", False)}}
    for key, value in values.items():
        name = str(key).replace("-", "_").lower()
        nothing = name in NAMES and NAMES[name].kind == "nothing"
        whole = nothing or not isinstance(value, dict)
        for inner, one in ({key: value} if whole else _flat(value, f"{key}.")).items():
            name = str(inner).replace("-", "_").lower()
            is_known = name in _KNOWN or name.split(".")[0] in tables.DEEPSPEED.split()
            if without(name, one, is_known):
                continue
            if not is_known:
                hint = _hint(name, "", "-" if "-" in str(inner) else "_")
                raise UsageError(f"{path}: unknown setting {inner}{hint}")
            for block in ("deepspeed_json.", "deepspeed_extra_args."):
                name = name.removeprefix(block)
            given = str(one) if nothing else one
            source.add(name, given, f"{inner} {_plain(given)}")
    return source


def _load(path: str, read: Callable[[str], Any]) -> dict[str, Any]:
    values = read(path)
    if not isinstance(values, dict):
        raise FormatError(f"{path}: expected names and values, found {type(values).__name__}")
    return values


def _word(written: str) -> str:
    """The name in a setting as it was typed, without --no-."""
    name = written.partition(" ")[0].replace("_", "-").lower()
    return name.removeprefix("--no-").removeprefix("--")


def _hint(name: str, before: str, joint: str) -> str:
    """The name that was perhaps meant, written as in its source; "" if none is similar."""
    near = nearest(name, (word for word in _KNOWN if "." not in word))
    return f"; did you mean {before}{near.replace('_', joint)}?" if near else ""


def _plain(value: Any) -> str:
    if isinstance(value, (bool, float)):
        return json.dumps(value)
    return (value if isinstance(value, str) and len(value) < 300 else brief(value)).lower()


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one dictionary with dotted names."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        result |= _flat(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return result


def _convert(name: str, value: Any, written: str) -> dict[str, Any]:
    """The settings that a word, or a value of a file, makes. Raises UsageError."""
    setting = SETTINGS.get(name, Option(name))
    if name in tables.BARE and str(value).lower() in ("true", "false"):  # of a file
        return {name: tables.BARE[name] if str(value).lower() == "true" else None}
    if name == "save_interval" and (match := _MINUTES.fullmatch(str(value))):
        minutes = float(match[1]) * {"m": 1, "h": 60}[match[2][0]]
        return {name: None, "save_interval_in_mins": minutes}
    try:
        value = setting.read(value)
    except ValueError:
        also = ", or minutes or hours as in 10m and 2h" if name == "save_interval" else ""
        raise UsageError(f"{written}: expected {EXPECTED[setting.kind]}{also}") from None
    if setting.choices:
        value = tables.WORDS.get(str(value).lower(), value)
    if name == "initial_scale_power":
        if not -1000 < value < 1000:
            raise UsageError(f"{written}: a power of two that no number holds")
        return {"initial_loss_scale": 2.0**value}
    if name == "save_interval":  # the last one counts, whether in steps or in minutes
        return {name: value, "save_interval_in_mins": None}
    if name != "betas":
        return {name: value}
    if len(value) != 2:
        raise UsageError(f"{written}: expected two numbers")
    return {"adam_beta1": value[0], "adam_beta2": value[1]}


# Config -> the JSON that DeepSpeed is given.

# Blocks that are not passed on to DeepSpeed: their content is in Config, or has no effect.
OURS = ("activation_checkpointing", "optimizer")
# Other accepted settings of the optimizer: they describe torch's AdamW, which is used anyway.
ADAMW = {"adam_w_mode": True, "amsgrad": False, "bias_correction": True, "torch_adam": True}


def make_settings(config: Config, device_type: str) -> tuple[dict[str, Any], list[str]]:
    """The JSON for DeepSpeed: the given one, overridden by Config; and notes.

    The notes say what is done otherwise than requested. UsageError for requests that DeepSpeed
    cannot fulfil.
    """
    extra, zero = config.deepspeed_json, config.zero_stage
    precision, stages = config.precision_on(device_type), config.pipeline_model_parallel_size
    power = math.log2(config.initial_loss_scale)
    if stages > 1:
        raise UsageError(f"{option('pipeline_model_parallel_size')} {stages} needs engine torch")
    if precision == "fp16" and not (config.loss_scale or power.is_integer()):
        raise UsageError(
            f"{option('initial_loss_scale')} is {config.initial_loss_scale:g}: DeepSpeed needs a "
            "power of 2"
        )
    for name, value in extra.get("optimizer", {}).get("params", {}).items():
        if ADAMW.get(name) != value:
            raise UsageError(
                f"{name} {value} of the optimizer is not supported: it is torch's AdamW"
            )
    unused = ", ".join(extra.get("activation_checkpointing", {}))
    notes = [f"not needed to recompute activations: {unused}"] if unused else []
    if zero == 0:  # which is not exact: in half precision it makes one step too many
        zero = 1
        notes.append(f"{option('zero_stage')} 1 is used, which DeepSpeed computes exactly")
    scaling = {
        "loss_scale": config.loss_scale,
        "initial_scale_power": int(power),
        "loss_scale_window": config.loss_scale_window,
        "hysteresis": config.hysteresis,
        "min_loss_scale": config.min_loss_scale,
    }
    if precision == "bf16":  # in bf16 a sum of 256 micro batches would not grow any more
        extra = {"data_types": {"grad_accum_dtype": "fp32"}, **extra}
    settings = {k: v for k, v in extra.items() if k not in OURS} | {
        "train_batch_size": config.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_clipping": config.clip_grad,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {**extra.get("zero_optimization", {}), "stage": zero},
        "bf16": {**extra.get("bf16", {}), "enabled": precision == "bf16"},
        "fp16": {**extra.get("fp16", {}), **scaling, "enabled": precision == "fp16"},
    }
    return settings, notes
