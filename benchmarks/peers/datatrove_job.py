"""Tokenize files with datatrove: datatrove_job.py TOKENIZER FOLDER OUTPUT WORKERS [PATTERN TASKS].

A task of datatrove takes whole files, so FOLDER, which may be s3://, has one for each worker, or
for each of TASKS. The interpreter that has datatrove runs this.
"""

from __future__ import annotations

import sys
import time


def main(tokenizer: str, folder: str, output: str, workers: str, *chosen: str) -> None:
    """Read the files, tokenize them, and write a Megatron dataset for each."""
    pattern, tasks = chosen or ("*.jsonl", workers)
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import MegatronDocumentTokenizer

    began = time.perf_counter()
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(folder, glob_pattern=pattern),
            MegatronDocumentTokenizer(output, tokenizer_name_or_path=tokenizer),
        ],
        tasks=int(tasks),
        workers=int(workers),
        skip_completed=False,
        logging_dir=f"{output}/logs",
    ).run()
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
