"""Every command of README, docs and help pages is run as it stands, on a small dataset."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.documented import (
    WHOLE,
    documented,
    make_datasets,
    make_inputs,
    make_room,
    pages,
    steps,
)
from support.places import ROOT
from support.report_tools import run

from tokpack.cli.main import COMMANDS, command_of, module_of
from tokpack.cli.parser import parse
from tokpack.look import tokenizers
from tokpack.tokenizers import load
from tokpack.trainer.config.flags import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

# Commands that are only parsed, by how they begin, and why.
PARSED = {
    "tokpack train": "trains for hours; tests/trainer runs it",
    "tokpack generate": "needs a trained checkpoint; tests/trainer runs it",
    "tokpack samples": "needs the log of a training run; tests/trainer runs it",
    "tokpack view": "serves until it is stopped; tests/view runs it",
    "tokpack model import": "needs a model; tests/trainer runs it",
    "tokpack model export": "needs a trained checkpoint; tests/trainer runs it",
    "tokpack encode wiki.jsonl --tokenizer some/repository": "asks the hub",
    "tokpack encode wiki.jsonl --split-sentences": "needs a model that nltk downloads",
    "tokpack shards plan 's3://": "needs a store; tests/stores runs such",
    "tokpack encode --plan": "needs a plan; tests/shards runs it",
    "tokpack shards status": "needs a plan; tests/shards runs it",
    "tokpack shards commit": "needs shards; tests/shards runs it",
    "tokpack merge data/pile": "needs shards; tests/shards runs it",
    "tokpack shards task": "needs a command that waits; tests/documents runs it",
    "tokpack dedup s3://": "needs a store and Slurm; tests/shards runs such",
    "tokpack dedup pile -o clean --near 0.8 --engine ray": "needs Ray; tests/shards runs such",
    "tokpack encode s3://": "needs a store; tests/stores runs such",
    "tokpack encode 's3://": "needs a store; tests/stores runs such",
    "tokpack encode @s3://": "needs a store; tests/stores runs such",
    "tokpack encode wiki.jsonl -o s3://": "needs a store; tests/stores runs such",
    "tokpack inspect s3://": "needs a store; tests/stores runs such",
    "tokpack verify s3://": "needs a store; tests/stores runs such",
    "tokpack blend s3://": "needs a store; tests/stores runs such",
    "tokpack convert s3://": "needs a store; tests/stores runs such",
    "tokpack merge s3://": "needs a store; tests/stores runs such",
    "tokpack merge wiki s3://": "needs a store; tests/stores runs such",
    "tokpack split s3://": "needs a store; tests/stores runs such",
    "tokpack encode wiki.jsonl -o hf://": "needs the hub; tests/stores runs such",
    "tokpack merge hf://": "needs the hub; tests/stores runs such",
    "tokpack verify hf://": "needs the hub; tests/stores runs such",
}

# What a page of steps says that its reader has.
ASKED = {"docs/chat.md": ("my-model",), "README.md": ("wiki.jsonl", "web.jsonl")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """Two folders: texts and tokenizers, and with datasets too; GPT-2 and others in a cache."""
    root = tmp_path_factory.mktemp("documented")
    tokenizers = root / "cache" / "tokenizers"
    files = shared / "tokenizers"
    for name, source, target in (
        ("gpt2", files / "gpt2-vocab.json", "vocab.json"),
        ("gpt2", files / "gpt2-merges.txt", "merges.txt"),
        ("neox", files / "20B_tokenizer.json", "tokenizer.json"),
        ("cl100k_base", files / "modern" / "cl100k_base.tiktoken", "cl100k_base.tiktoken"),
    ):
        (tokenizers / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tokenizers / name / target)
    (root / "inputs").mkdir()
    make_inputs(root / "inputs")
    shutil.copy(files / "modern" / "qwen.tiktoken", root / "inputs")
    for name in ("spm.model", "tokenizer.model"):
        shutil.copy(files / "modern" / "mistral-v1.model", root / "inputs" / name)
    shutil.copytree(root / "inputs", root / "datasets")
    with pytest.MonkeyPatch.context() as patch:
        at_home(patch, root, root / "datasets")
        blend = re.search(r"\n    datasets:\n(?:      ?.*\n|    \w.*\n)+", page("blend.md"))
        assert blend
        make_datasets(root / "datasets", re.sub(r"(?m)^    ", "", blend[0]))
    return root


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def at_home(patch: pytest.MonkeyPatch, root: Path, folder: Path) -> None:
    """One core, no network, and no cache but ours."""
    patch.setenv("TOKPACK_CACHE", str(root / "cache"))
    patch.setenv("TOKPACK_TOKENIZER_CACHE", "1")
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("HOME", str(folder))
    patch.chdir(folder)


def parsed(words: list[str]) -> None:
    """Parse a command that is not run, without what the shell does with its output."""
    words = list(itertools.takewhile(lambda word: word not in ("|", ">", "&&"), words))
    if words[1] == "train":
        files = [word for word in words[2:] if word.endswith((".yaml", ".yml"))]
        for file in files:
            Path(file).parent.mkdir(exist_ok=True)
            Path(file).unlink(missing_ok=True)
            kinds = {"blend": "datasets: wiki\n", "gpu": "gpu: h100\n"}
            text = next((text for kind, text in kinds.items() if kind in file), "lr: 1e-3\n")
            Path(file).write_text(text)
        resolve(words[2:])
    else:
        name, rest = command_of(words[1:])
        assert parse(module_of(name).PAGE, rest)


def test_the_commands_are_found() -> None:
    found = [command for _, command in documented()]
    assert len(found) > 90
    for name in COMMANDS:
        assert any(f"tokpack {name}" in command for command in found), name
    for start in PARSED:
        assert any(command.startswith(start) for command in found), start


def test_what_is_made_of_declarations_is_current() -> None:
    name = "commands_page"
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    advice = "run: python tools/commands_page.py"
    assert page("commands.md") == made.page(), advice
    assert page("api.md") == made.api_page(page("api.md")), advice
    assert made.KEYWORDS.read_text(encoding="utf-8") == made.keywords(), advice


@pytest.mark.parametrize("half", [0, 1])
def test_commands_run_as_they_stand(
    half: int, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a folder of its own."""
    shim = tmp_path / "bin" / "tokpack"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m tokpack "$@"\n')
    shim.chmod(0o755)
    # What takes the time: GPT-2's files are read once for all commands, libraries are measured once
    # instead of several times, and where a command brings a text of its own, it takes less of it.
    monkeypatch.setattr(load, "from_gpt2_files", functools.cache(load.from_gpt2_files))
    monkeypatch.setattr(tokenizers, "_RUNS", 1)
    sample_texts = tokenizers.sample_texts
    monkeypatch.setattr(tokenizers, "sample_texts", lambda most: sample_texts(min(most, 300_000)))
    monkeypatch.setenv("PATH", f"{shim.parent}{os.pathsep}{os.environ['PATH']}")
    failed = []
    for number, (where, command) in enumerate(list(documented())[half::2]):
        folder = tmp_path / str(number)
        made = re.search("tokpack (encode|vocab|shards plan)", command)
        # Links, which cost less than copies: whatever is replaced gets another file.
        source = world / ("inputs" if made else "datasets")
        shutil.copytree(source, folder, copy_function=os.link)
        make_room(command, folder)
        at_home(monkeypatch, world, folder)
        try:
            if any(command.startswith(start) for start in PARSED):
                parsed(shlex.split(command))
            elif re.search(r"[|>$]", re.sub(r"'[^']*'|\"[^\"]*\"", "", command)):
                subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True)
            else:
                run(*shlex.split(command)[1:])
        except Exception as error:  # all that is wrong is told at once
            failed.append(f"{where}: {command}\n    {getattr(error, 'stderr', '') or error}")
        shutil.rmtree(folder)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", WHOLE)
def test_a_guide_runs_from_its_first_step_to_its_last(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with nothing but what the page asks for: it makes every other file it names."""
    for asked in ASKED.get(name, ()):
        shutil.copytree(world / "inputs", tmp_path, dirs_exist_ok=True, ignore=all_but(asked))
    at_home(monkeypatch, world, tmp_path)
    done = [kind for kind, step in steps(pages()[name]) if _do(kind, step, tmp_path)]
    assert {"python", "command"} <= set(done)


def all_but(name: str) -> Callable[[str, list[str]], list[str]]:
    """For copytree: what lies beside ``name`` in its folder is left out."""
    return lambda _, names: [other for other in names if name in names and other != name]


def _do(kind: str, step: str, folder: Path) -> bool:
    words = shlex.split(step, comments=True) if kind == "command" else []
    if kind == "python":
        exec(step, {})
    elif words[1] in ("train", "generate", "samples", "view", "model") or "://" in step:
        (folder / "parsed").mkdir(exist_ok=True)
        with contextlib.chdir(folder / "parsed"):  # it writes configurations of its own
            parsed(words)
    else:
        done = run(*words[1:])
        told = [one for one in f"{done.stdout}{done.stderr}".splitlines() if "warning:" in one]
        # No step of a guide may deserve a warning; but the texts here are few, and seen often.
        assert not [one for one in told if " is seen " not in one], step
    return True


def test_python_runs_as_it_stands(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for name, text in pages().items() if name not in WHOLE]
    blocks = [b for text in texts for b in re.findall(r"(?s)```python\n(.*?)```", text)]
    assert len(blocks) > 3
    for number, block in enumerate(blocks):
        folder = tmp_path / str(number)
        shutil.copytree(world / "datasets", folder, copy_function=os.link)
        at_home(monkeypatch, world, folder)
        if "tokpack.encode" in block:
            for suffix in ("bin", "idx", "json", "docs.parquet"):
                (folder / f"wiki.{suffix}").unlink()
        exec(block, {})
