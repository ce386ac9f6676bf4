"""GPT-2's tokenizer in each form that a preprocessor asks for, in one folder called gpt2."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_EOD = "<|endoftext|>"


def write(folder: Path, vocab_file: Path, merge_file: Path) -> None:
    """Write vocab.json, merges.txt, tokenizer.json and what the transformers library wants."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(vocab_file, folder / "vocab.json")
    shutil.copyfile(merge_file, folder / "merges.txt")
    tokenizer = Tokenizer(models.BPE.from_file(str(vocab_file), str(merge_file)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_EOD, special=True, normalized=False)])
    content = json.loads(tokenizer.to_str())
    # The form of merges that tokenizers before 0.20 know too.
    content["model"]["merges"] = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]
    ]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    special = dict.fromkeys(("eos_token", "bos_token", "unk_token"), _EOD)
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
