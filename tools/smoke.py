"""Is an installed tokpack whole: a text is encoded, verified and read back, in a folder of its own.

Needs nothing but tokpack, no network and no file of the repository: what is run on every wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TEXTS = [f"Document {n} says that naïve people drink 水 and {'z' * n}." for n in range(300)]


def run(*arguments: str) -> None:
    """Run the installed command beside this Python, or say what it printed."""
    command = Path(sys.executable).with_name("tokpack")
    done = subprocess.run([command, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"tokpack {' '.join(arguments)} exited {done.returncode}:\n{done.stderr}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        run("vocab", "text.jsonl", "-o", "tokenizer.json", "--size", "400")
        run("encode", "text.jsonl", "--tokenizer", "tokenizer.json", "--workers", "2")
        run("verify", "text")

        import tokpack  # here, so that what the commands used is what is imported

        dataset = tokpack.MMapIndexedDataset("text")
        tokenizer = tokpack.load_tokenizer("tokenizer.json")
        read = [tokenizer.decode(dataset[number][:-1]) for number in range(len(dataset))]
        if read != TEXTS:
            sys.exit("the texts that were read back are not those that were encoded")
        sample = tokpack.GPTDataset("text", 32)[9]
        if sample["tokens"].shape != (32,):
            sys.exit(f"a sample of 32 tokens has the shape {sample['tokens'].shape}")
        print(f"tokpack {tokpack.__version__} in {Path(tokpack.__file__).parent} is whole")


if __name__ == "__main__":
    main()
