"""How each existing preprocessor is started, and where it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).resolve().parent
OFFLINE = {"HF_HUB_OFFLINE": "1"}  # or some ask a server for files that they were given


@dataclass(frozen=True)
class Setting:
    """What a peer is to do."""

    python: str  # interpreter that has what the peer needs
    checkout: Path | None  # the peer's repository, where it is a script
    source: Path  # JSON lines
    shards: Sequence[Path]  # the same documents as one file for each worker
    gpt2: Path  # folder with GPT-2's tokenizer in every form
    output: Path  # an empty folder, also the working directory
    workers: int

    def script(self, path: str, *more: str) -> list[str]:
        """The command of a script of the peer, with the flags that all of them have."""
        return [
            *(self.python, str(HERE / "launch.py"), str(self.checkout and self.checkout / path)),
            *("--input", str(self.source), "--output-prefix", str(self.output / "out")),
            *("--append-eod", *more),
        ]

    def megatron(self, path: str, *more: str) -> list[str]:
        """The command of a relative of Megatron's script."""
        vocabulary = ("--vocab-file", str(self.gpt2 / "vocab.json"))
        merges = ("--merge-file", str(self.gpt2 / "merges.txt"))
        tokenizer = ("--tokenizer-type", "GPT2BPETokenizer")
        return self.script(path, *vocabulary, *merges, *tokenizer, *more)

    def with_workers(self, *more: str) -> list[str]:
        """The command of Megatron's script and its forks, with its processes."""
        return self.megatron("tools/preprocess_data.py", *more, "--workers", str(self.workers))


@dataclass(frozen=True)
class Peer:
    """One way to tokenize."""

    name: str
    option: str  # the option of run.py that says where it is
    command: Callable[[Setting], list[str]]
    module: str = ""  # what must be importable, for a peer that is a package
    results: str = "*.bin"  # its token files in the output folder
    packages: tuple[str, ...] = ("transformers", "tokenizers", "torch", "numpy")
    environment: Callable[[Setting], dict[str, str]] = field(default=lambda _: {})


def gpt_neox(setting: Setting) -> list[str]:
    """GPT-NeoX's script with its faster tokenizer, Hugging Face's."""
    tokenizer = ("--tokenizer-type", "HFTokenizer", "--workers", str(setting.workers))
    vocabulary = ("--vocab-file", str(setting.gpt2 / "tokenizer.json"), "--dataset-impl", "mmap")
    return setting.script("tools/datasets/preprocess_data.py", *vocabulary, *tokenizer)


def datatrove(setting: Setting) -> list[str]:
    """datatrove's MegatronDocumentTokenizer, a file for each worker."""
    tokenizer, folder = setting.gpt2 / "tokenizer.json", setting.shards[0].parent
    words = (str(tokenizer), str(folder), str(setting.output / "data"), str(setting.workers))
    return [setting.python, str(HERE / "datatrove_job.py"), *words]


def dolma(setting: Setting) -> list[str]:
    """dolma tokens, a file for each worker, whose documents it mixes; raw tokens, no index."""
    config = setting.output / "dolma.json"
    settings = {
        "documents": [str(path) for path in setting.shards],
        "destination": str(setting.output / "data"),
        "processes": setting.workers,
        "dtype": "uint16",
        "max_size": 2 * setting.source.stat().st_size,
        "fields": {"text_field_name": "text", "id_field_name": None},
        "tokenizer": {
            "name_or_path": str(setting.gpt2 / "tokenizer.json"),
            "eos_token_id": 50256,
            "segment_before_tokenization": False,
        },
    }
    config.write_text(json.dumps(settings))
    return [str(Path(setting.python).with_name("dolma")), "-c", str(config), "tokens"]


def forked(setting: Setting) -> list[str]:
    """BigScience's and Microsoft's scripts; with --append-eod Microsoft's .idx leaves EOD out."""
    return setting.with_workers("--dataset-impl", "mmap")


PEERS = (
    Peer(
        "megatron-fast",
        "megatron-lm",
        lambda setting: setting.megatron("tools/preprocess_data_fast.py", "--use-gigatoken"),
        packages=("gigatoken", "transformers", "tokenizers", "torch", "numpy"),
        environment=lambda setting: {"RAYON_NUM_THREADS": str(setting.workers)},
    ),
    Peer("megatron", "megatron-lm", Setting.with_workers),
    Peer("gpt-neox", "gpt-neox", gpt_neox),
    Peer("bigscience", "bigscience", forked),
    Peer("microsoft", "microsoft", forked),
    Peer(
        "datatrove",
        "datatrove",
        datatrove,
        module="datatrove",
        results="data/*.bin",
        packages=("datatrove", "tokenizers"),
    ),
    Peer(
        "dolma",
        "dolma",
        dolma,
        module="dolma",
        results="data/*.npy",
        packages=("dolma", "tokenizers"),
    ),
)
