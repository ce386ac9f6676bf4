"""SentencePiece models in memory, one thread, beside their own libraries in the same run.

    python benchmarks/encode_pieces.py [--data DIR] [--corpora english,code,multi] [--runs 3]

As ``encode.py`` measures: each cell is a fresh process, and the two take turns. The models are
Mistral's (BPE with byte fallback), the same as a tokenizer.json (``mistral-json``, beside Hugging
Face's library), and a Unigram of 32,000 pieces with the rules nmt_nfkc, as T5 has them, which the
library trains from the corpora first. A library gets the first ``--slow-bytes`` of a corpus only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import common
import encode

# name in the table -> its library in encode_one.py
MODELS = {"mistral": "sentencepiece", "mistral-json": "tokenizers", "unigram": "sentencepiece"}
_TRAINED_ON = 100_000  # lines of each corpus


def prepare(data: common.Data, work: Path, corpora: list[str]) -> None:
    """Write what encode_one.py reads: the models, each in a folder; documents and offsets."""
    import sentencepiece

    lines: list[str] = []
    for name in corpora:
        texts = data.texts(name)
        documents = [text.encode() for text in texts]
        (work / f"{name}.txt").write_bytes(b"".join(documents))
        np.cumsum([0, *map(len, documents)]).astype(np.int64).tofile(work / f"{name}.offsets")
        lines += [line for text in texts for line in text.split("\n") if line][:_TRAINED_ON]
    for name in MODELS:
        (work / "tokenizers" / name).mkdir(parents=True, exist_ok=True)
    mistral = data.folder / "tokenizers" / "modern" / "mistral-v1.model"
    (work / "tokenizers" / "mistral" / "tokenizer.model").write_bytes(mistral.read_bytes())
    write_json(mistral, work / "tokenizers" / "mistral-json" / "tokenizer.json")
    unigram = work / "tokenizers" / "unigram" / "tokenizer.model"
    if not unigram.exists():
        with unigram.open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=file, vocab_size=32000, minloglevel=2
            )


def write_json(model: Path, target: Path) -> None:
    """Write a BPE model as the tokenizer.json that ``transformers`` makes of it."""
    import sentencepiece
    from tokenizers import Tokenizer, models, normalizers

    known = sentencepiece.SentencePieceProcessor(model_file=str(model))
    vocab = {known.id_to_piece(i): i for i in range(len(known))}
    merges = [
        (-known.get_score(token_id), vocab[piece[:at]], vocab[piece[at:]], piece[:at], piece[at:])
        for piece, token_id in vocab.items()
        for at in range(1, len(piece))
        if piece[:at] in vocab and piece[at:] in vocab
    ]
    pairs = [merge[3:] for merge in sorted(merges)]
    bpe = models.BPE(vocab, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    space = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence(space)
    tokenizer.save(str(target))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    common.add_data_argument(parser)
    parser.add_argument("--corpora", default="english,code,multi")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--slow-bytes", type=int, default=6_000_000)
    parser.add_argument("--work", type=Path, help="kept folder for models and corpora")
    return parser.parse_args()


def main() -> None:
    """Measure everything in turns, compare ids, print and append rows."""
    args = parse()
    corpora = args.corpora.split(",")
    with tempfile.TemporaryDirectory(prefix="tokpack-pieces-") as temporary:
        work = args.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        prepare(common.find_data(args.data), work, corpora)
        own = encode.Program("tokpack", "tokpack", sys.executable, 1 << 50, encode.PASSES)
        rows = [
            row
            for model, library in MODELS.items()
            for peer in [encode.Program(library, library, sys.executable, args.slow_bytes, 2)]
            for corpus in corpora
            for row in encode.compare((own, peer), work, model, corpus, args.runs)
        ]
    columns = ["tokenizer", "corpus", "library", "MB", "cold MB/s", "warm MB/s"]
    common.print_table(
        [*columns, "tokpack x cold", "x warm", "ids"],
        [
            [
                *(r["tokenizer"], r["corpus"], r["library"], r["bytes"] / 1e6),
                *(r["cold"]["median"], r["warm"]["median"]),
                *(r["tokpack_cold_ratio"], r["tokpack_warm_ratio"]),
                "equal" if r["equal_ids"] else "DIFFER",
            ]
            for r in rows
        ],
    )
    path = common.append_rows("encode", rows, common.versions())
    print(f"rows appended to {path.relative_to(common.ROOT)}", file=sys.stderr)
    if not all(r["equal_ids"] for r in rows):
        sys.exit("ids differ")


if __name__ == "__main__":
    main()
