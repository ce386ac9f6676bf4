"""How each existing preprocessor is started, and where it writes. One small function for each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).resolve().parent
_OFFLINE = {"HF_HUB_OFFLINE": "1"}  # or some ask a server for files that they were given


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

    def script(self, path: str) -> list[str]:
        """The beginning of a command that runs a script of the peer."""
        if self.checkout is None:
            raise ValueError(f"{path} needs a checkout")
        return [self.python, str(HERE / "launch.py"), str(self.checkout / path)]

    def megatron_flags(self) -> list[str]:
        """The flags that all relatives of Megatron's script share."""
        return [
            *("--input", str(self.source), "--output-prefix", str(self.output / "out")),
            *("--vocab-file", str(self.gpt2 / "vocab.json")),
            *("--merge-file", str(self.gpt2 / "merges.txt")),
            *("--tokenizer-type", "GPT2BPETokenizer", "--append-eod"),
        ]


@dataclass(frozen=True)
class Job:
    """A command and what it needs in its environment."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """One way to tokenize."""

    name: str
    option: str  # the option of run.py that says where it is
    job: Callable[[Setting], Job]
    module: str = ""  # what must be importable, for a peer that is a package
    results: str = "*.bin"  # its token files in the output folder
    packages: tuple[str, ...] = ()  # whose versions matter


def megatron_fast(setting: Setting) -> Job:
    """Megatron-LM's preprocess_data_fast.py: gigatoken reads and encodes, with threads."""
    command = [*setting.script("tools/preprocess_data_fast.py"), *setting.megatron_flags()]
    threads = {"RAYON_NUM_THREADS": str(setting.workers)}
    return Job([*command, "--use-gigatoken"], {**_OFFLINE, **threads})


def megatron_gigatoken(setting: Setting) -> Job:
    """Megatron-LM's preprocess_data.py with gigatoken in its workers."""
    job = megatron(setting)
    threads = {"RAYON_NUM_THREADS": "1"}  # the workers are the parallelism
    return Job([*job.command, "--use-gigatoken"], {**job.environment, **threads})


def megatron(setting: Setting) -> Job:
    """Megatron-LM's preprocess_data.py, with the Hugging Face tokenizer that it builds."""
    command = [*setting.script("tools/preprocess_data.py"), *setting.megatron_flags()]
    return Job([*command, "--workers", str(setting.workers)], _OFFLINE)


def gpt_neox(setting: Setting) -> Job:
    """GPT-NeoX's script with its faster tokenizer, Hugging Face's."""
    command = [
        *setting.script("tools/datasets/preprocess_data.py"),
        *("--input", str(setting.source), "--output-prefix", str(setting.output / "out")),
        *("--vocab-file", str(setting.gpt2 / "tokenizer.json"), "--dataset-impl", "mmap"),
        *("--tokenizer-type", "HFTokenizer", "--append-eod"),
        *("--workers", str(setting.workers)),
    ]
    return Job(command, _OFFLINE)


def bigscience(setting: Setting) -> Job:
    """BigScience's preprocess_data.py, which keeps the order of the documents."""
    command = [*setting.script("tools/preprocess_data.py"), *setting.megatron_flags()]
    return Job([*command, "--dataset-impl", "mmap", "--workers", str(setting.workers)], _OFFLINE)


def bigscience_many_cores(setting: Setting) -> Job:
    """BigScience's preprocess_data_many_cores.py; one of its workers only reads."""
    command = [*setting.script("tools/preprocess_data_many_cores.py"), *setting.megatron_flags()]
    return Job(
        [*command, "--dataset-impl", "mmap", "--workers", str(setting.workers + 1)], _OFFLINE
    )


def microsoft(setting: Setting) -> Job:
    """Microsoft's Megatron-DeepSpeed. With --append-eod its .idx leaves the EOD out."""
    command = [*setting.script("tools/preprocess_data.py"), *setting.megatron_flags()]
    return Job([*command, "--dataset-impl", "mmap", "--workers", str(setting.workers)], _OFFLINE)


def datatrove(setting: Setting) -> Job:
    """datatrove's MegatronDocumentTokenizer, a file for each worker."""
    command = [setting.python, str(HERE / "datatrove_job.py")]
    tokenizer, folder = setting.gpt2 / "tokenizer.json", setting.shards[0].parent
    words = (str(tokenizer), str(folder), str(setting.output / "data"), str(setting.workers))
    return Job([*command, *words], _OFFLINE)


def dolma(setting: Setting) -> Job:
    """dolma tokens, a file for each worker, whose documents it mixes; raw tokens, no index."""
    config = setting.output / "dolma.json"
    config.write_text(
        json.dumps(
            {
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
        )
    )
    program = Path(setting.python).with_name("dolma")
    return Job([str(program), "-c", str(config), "tokens"], _OFFLINE)


_HF = ("transformers", "tokenizers", "torch", "numpy")

PEERS = (
    Peer("megatron-fast", "megatron-lm", megatron_fast, packages=("gigatoken", *_HF)),
    Peer("megatron-gigatoken", "megatron-lm", megatron_gigatoken, packages=("gigatoken", *_HF)),
    Peer("megatron", "megatron-lm", megatron, packages=_HF),
    Peer("gpt-neox", "gpt-neox", gpt_neox, packages=_HF),
    Peer("bigscience", "bigscience", bigscience, packages=_HF),
    Peer("bigscience-many-cores", "bigscience", bigscience_many_cores, packages=_HF),
    Peer("microsoft", "microsoft", microsoft, packages=_HF),
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
