"""``tokpack convert``: datasets of token ids from and to other formats, and to another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.parser import Group, Page, flags, given_options, number
from tokpack.quantities import counted, time_text

if TYPE_CHECKING:
    import argparse

DTYPES = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "int64")

PAGE = Page(
    "convert",
    "Convert a dataset of token ids from another format, to another format, or to another dtype.",
    (
        Group(
            "flags",
            flags(
                """
                --from FORMAT        format of INPUT (found by its content)
                --to FORMAT          format of OUTPUT (by its name, else mmap; a .npy needs it)
                --dtype DTYPE        type of the ids in OUTPUT
                --eod ID             the id that ends a document, for formats that need one
                --input-dtype DTYPE  type of the ids in an INPUT that does not tell it
                --column NAME        column with the ids, of parquet, Arrow, mds (input_ids, tokens)
                --seq-length N       bridge: pack documents into rows of at most N tokens, best-fit
                --overwrite          replace what is there
                --json               print what was made as JSON on stdout
                """,
                **{"from": {"dest": "from_", "default": ""}},
                to={"default": ""},
                dtype={"choices": DTYPES},
                eod={"type": number(0)},
                seq_length={"type": number(1)},
                input_dtype={"choices": (*DTYPES, "uint64")},
            ),
        ),
    ),
    """\
A dataset in .bin and .idx is named by its prefix, anything else by its file or folder.

formats:
  mmap       .bin/.idx, which Megatron, GPT-NeoX and tokpack train on
  datatrove  .ds with .ds.index
  olmo       .npy without a header and .csv.gz, as dolma and OLMo-core have them
  npy        a numpy array, one run of ids; from: also one document per row
  raw        ids and nothing else, as nanoGPT has them
  llm.c      a shard of llm.c or modded-nanogpt; from only
  parquet    a list of ids in each row
  arrow      a folder of Hugging Face's datasets, as TRL and axolotl have them
  bridge     NAME.idx.parquet, packed, as Megatron-Bridge has it; from: parquet
  neox       OUTPUT_document and OUTPUT_label_document of GPT-NeoX
  mds        a folder of MosaicML's streaming; from only
  litdata    a folder of litdata's, for its TokensLoader; from only

A dataset's mask, which tokens are trained, is converted too: as a mask, or as labels with
-100, to and from all formats but npy, raw, llm.c, mds and litdata.

examples:
  tokpack convert ids.bin train --from raw --input-dtype uint16 --eod 50256
  tokpack convert wiki wiki.parquet
  tokpack convert wiki wiki.npy --to olmo
  tokpack convert wiki wiki32 --dtype int32
  tokpack convert chats neox/chats --to neox
  tokpack convert chats chats.idx.parquet --seq-length 4096
""",
    usage="INPUT OUTPUT [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack convert``."""
    from tokpack.formats import convert

    source, output = arguments.inputs
    with terminal.Reporter() as report:
        result = convert(source, output, **given_options(convert, arguments), progress=report)
    for line in result.notes:
        terminal.note(line)
    terminal.say(
        f"{output}: {counted(result.documents, 'document')}, "
        f"{counted(result.tokens, 'token')} as {result.dtype}, "
        f"in the format {result.target}, in {time_text(report.seconds)}"
    )
    if arguments.json:
        terminal.put_json(result._asdict())
    else:
        terminal.print_paths(*result.paths)
    return 0
