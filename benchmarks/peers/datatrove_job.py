"""Tokenize files with datatrove: datatrove_job.py TOKENIZER FOLDER OUTPUT WORKERS.

A task of datatrove takes whole files, so FOLDER has one for each worker. The interpreter that has
datatrove runs this.
"""

from __future__ import annotations

import sys


def main(tokenizer: str, folder: str, output: str, workers: str) -> None:
    """Read the files, tokenize them, and write a Megatron dataset for each."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import MegatronDocumentTokenizer

    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(folder, glob_pattern="*.jsonl"),
            MegatronDocumentTokenizer(output, tokenizer_name_or_path=tokenizer),
        ],
        tasks=int(workers),
        workers=int(workers),
        skip_completed=False,
        logging_dir=f"{output}/logs",
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
