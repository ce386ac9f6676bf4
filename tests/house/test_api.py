"""The face of the package: what can be imported, and options that have one name everywhere."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.places import ROOT

import tokpack
from tokpack import errors
from tokpack.cli.main import COMMANDS, module_of
from tokpack.cli.parser import flag_names
from tokpack.encoding.options import EncodeOptions
from tokpack.option import options_of
from tokpack.samples.blend.open import index_files, prebuild
from tokpack.samples.blend.spec import BlendSpec
from tokpack.tokenizers import (
    TokenizerFiles,
    train_bpe,
    train_whitespace_vocab,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokpack.progress import Progress


def test_every_exported_name_can_be_imported() -> None:
    for name in tokpack.__all__:
        assert getattr(tokpack, name) is not None
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = tokpack.nothing  # type: ignore[attr-defined]


def test_every_exception_is_exported() -> None:
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    defined = {name for name, value in classes.items() if issubclass(value, Exception)}
    assert defined <= set(tokpack.__all__)


def test_the_options_of_encode_are_said_in_one_record() -> None:
    """What inspect and help show, and the record: one set, one type."""
    record = {**options_of(EncodeOptions)}
    given = {name: record.pop(name) for name in ("inputs", "output", "keys")}
    local = {"files", "report_to", "scratch", "workers"}
    for function, without in ((tokpack.encode, set()), (tokpack.plan, local)):
        parameters = inspect.signature(function).parameters
        for name in set(record) - without:
            assert parameters[name].default == record[name].default, name
            assert parameters[name].annotation == record[name].hint, name
            assert f"- ``{name}``: {record[name].said()}" in str(function.__doc__)
            assert record[name].said() in str(EncodeOptions.__doc__)
        others = set(parameters) - set(record) - set(given)
        assert others <= {"progress", "resume_key", "shard_size", "texts"}
    page = module_of("encode").PAGE
    flags = flag_names(*page.groups)
    assert set(record) - set(flags) == {"output_names", "max_rejects"}


def test_an_unknown_option_is_a_type_error(tmp_path: Path) -> None:
    for function in (tokpack.encode, tokpack.plan):
        with pytest.raises(TypeError, match=rf"{function.__name__}\(\) .*'tokeniser'"):
            function(["a.jsonl"], tmp_path / "a", tokeniser="gpt2")  # type: ignore[call-overload]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Six documents of one sequence each."""
    with tokpack.MMapIndexedDatasetBuilder(tmp_path / "six.bin", dtype=np.uint16) as builder:
        for number in range(6):
            builder.add_item([number] * (number + 1))
            builder.end_document()
        builder.finalize(tmp_path / "six.idx")
    return tmp_path / "six"


def test_operations_take_paths(prefix: Path, tmp_path: Path) -> None:
    merged = tokpack.merge([prefix, prefix], tmp_path / "twelve")
    assert merged.documents == 12
    parts = tokpack.split(tmp_path / "twelve", tmp_path / "cut", documents=4)
    assert [manifest.documents for _, manifest in parts] == [4, 4, 4]
    tokpack.convert(prefix, tmp_path / "wide", dtype="int32")
    assert tokpack.MMapIndexedDataset(tmp_path / "wide").dtype == np.int32
    tokpack.convert(prefix, tmp_path / "flat.npy", to="npy")
    assert np.load(tmp_path / "flat.npy").sum() == sum(n * (n + 1) for n in range(6))
    assert tokpack.verify(prefix).tokens == 21
    assert tokpack.stats(prefix).tokens == 21


def test_a_tokenizer_is_named_alike_everywhere(prefix: Path, tmp_path: Path) -> None:
    words = tmp_path / "vocab.json"
    words.write_text('{"<unk>": 0, "<|endoftext|>": 1, "a": 2, "b": 3, "c": 4, "d": 5}')
    given: TokenizerFiles = {"vocab_file": words, "tokenizer_type": "Whitespace"}
    assert tokpack.load_tokenizer(**given).vocab_size == 6
    assert tokpack.load_tokenizer(name=words, tokenizer_type="Whitespace").vocab_size == 6
    assert "token ids" in tokpack.verify(prefix, **given).checked
    assert tokpack.stats(prefix, **given).vocab_size == 6
    words.write_text('{"<unk>": 0, "<|endoftext|>": 1, "a": 2}')
    with pytest.raises(tokpack.FormatError, match="3"):
        tokpack.verify(prefix, **given)
    with pytest.raises(TypeError, match="tokeniser"):
        tokpack.verify(prefix, vocab_size=6, tokeniser="gpt2")  # type: ignore[call-arg]


def test_shards_are_made_from_python(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a b\nb\n")
    (tmp_path / "more.txt").write_text("c\n")
    (tmp_path / "v.json").write_text('{"<unk>": 0, "<|endoftext|>": 1, "a": 2, "b": 3, "c": 4}')
    inputs, out = [tmp_path / "in.txt", tmp_path / "more.txt"], tmp_path / "out"
    given: TokenizerFiles = {"vocab_file": tmp_path / "v.json", "tokenizer_type": "Whitespace"}
    plan = tokpack.plan(inputs, out, shard_size=1, **given)
    assert [one.state for one in tokpack.status(out)] == ["open"] * plan.shards
    seen: list[Progress] = []
    made = [tokpack.encode_shard(out, n, progress=seen.append) for n in range(plan.shards)]
    assert seen
    assert [one.state for one in tokpack.status(out)] == ["done"] * plan.shards
    whole = tokpack.commit(out)["text"]
    assert whole.documents == 3
    assert whole.tokens == sum(one["text"].tokens for one in made)


# The command's own: how it is asked, what it says and where to, not what it does.
OF_COMMANDS = {"quiet", "debug", "help", "json", "log_interval"}
# Of each command: the functions that do it in Python, and why flags have no parameter there.
ON_A_CLUSTER = dict.fromkeys(("engine", "machines", "engine_option", "ray_address"), "of tasks")
WHAT_DOES: dict[str, tuple[tuple[Callable[..., Any], ...], dict[str, str]]] = {
    "encode": (
        (tokpack.encode, tokpack.encode_shard),
        {"plan": "encode_shard's prefix"}
        | ON_A_CLUSTER
        | {"shard_size": "of plan", "dry_run": "shows; chat.render does"},
    ),
    "shards plan": ((tokpack.plan,), {}),
    "shards status": ((tokpack.status,), {"all": "all are in the list", "watch": "a loop"}),
    "shards commit": ((tokpack.commit,), {"data_path": "tokpack.shards.data_path"}),
    "verify": (
        (tokpack.verify,),
        {"against": "inputs of compare_with_inputs", "sample": "count of verify_sample"}
        | {"input_format": "of both"}
        | ON_A_CLUSTER,
    ),
    "adopt": ((tokpack.adopt,), {}),
    "stats": (
        (tokpack.stats,),
        {"html": "tokpack.look.page", "overwrite": "of --html", "top": "how many are printed"}
        | ON_A_CLUSTER,
    ),
    "merge": ((tokpack.merge,), {}),
    "select": ((tokpack.select,), {}),
    "split": ((tokpack.split,), {}),
    "dedup": ((tokpack.dedup,), ON_A_CLUSTER),
    "decontaminate": ((tokpack.decontaminate,), ON_A_CLUSTER),
    "convert": ((tokpack.convert,), {}),
    "model export": ((tokpack.export,), {}),
    "model import": ((tokpack.import_model,), {}),
    "tokenizer": (
        (tokpack.load_tokenizer,),
        dict.fromkeys(("text", "on", "compare", "check", "by", "key"), "shown")
        | {"input_format": "shown", "sample": "shown"},
    ),
    "blend": (
        (BlendSpec, index_files, prebuild),
        {"megatron_cache": "the folder of index_files"}
        | {"test_data_path": "test", "valid_data_path": "valid", "output": "save_blend"}
        | {"max_epochs": "BlendPlan.warnings", "duplicates": "DuplicateFinder"}
        | {"cap_epochs": "blend.cap"}
        | dict.fromkeys(("show", "max_tokens", *TokenizerFiles.__annotations__), "shown"),
    ),
    "tokenizer train": (
        (train_bpe, train_whitespace_vocab),
        {"type": "which function", "workers": "threads"}
        | dict.fromkeys(("output", "overwrite", "key", "input_format", "limit"), "takes texts"),
    ),
}
# What is shown, run or asked for, with nothing for Python to call under that name: docs/api.md
# says what there is instead.
ONLY_COMMANDS = {
    "bench",
    "inspect",
    "samples",
    "train",
    "view",
    "generate",
    "doctor",
    "shards task",
}


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """Names of keyword parameters, those of an unpacked TypedDict too."""
    found = set()
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is one.VAR_KEYWORD:
            found |= set(UNPACKED[one.annotation].__annotations__)
        else:
            found.add(name)
    return found


UNPACKED = {"Unpack[TokenizerFiles]": TokenizerFiles}
# Inputs; what is only for programs; and what a flag says in one word with another.
NOT_FLAGS = {"inputs", "input", "prefix", "model", "checkpoint", "tokenizer"}
NOT_FLAGS |= {"progress", "tasks", "output_names", "eod_token", "name"}
NOT_FLAGS |= {"output", "max_rejects", "resume_key", "texts"}


def test_every_command_is_told_apart() -> None:
    assert set(WHAT_DOES) | ONLY_COMMANDS == set(COMMANDS)
    text = (ROOT / "docs" / "api.md").read_text()
    for name in ONLY_COMMANDS:
        assert f"`tokpack {name}`" in text, name


@pytest.mark.parametrize("command", WHAT_DOES)
def test_flags_and_parameters_have_one_name(command: str) -> None:
    """Walks the parser and the signatures: whatever is in one of them alone is said here."""
    functions, known = WHAT_DOES[command]
    page = module_of(command).PAGE
    shown = [group for group in page.groups if not group.hidden]
    flags = set(flag_names(*shown)) - OF_COMMANDS
    parameters = set().union(*map(parameters_of, functions))
    assert flags - parameters == set(known), "flags that no function has"
    everything = flags | set(flag_names(*page.groups))
    if command not in (
        "blend",
        "tokenizer train",
    ):  # of a file, of texts
        assert parameters - everything <= NOT_FLAGS, "parameters without a flag"
