"""Tokenize JSON lines with datatrove: datatrove_job.py TOKENIZER FOLDER OUTPUT WORKERS.

A task of datatrove takes whole files, so FOLDER has one for each worker.
"""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import MegatronDocumentTokenizer

if __name__ == "__main__":
    tokenizer, folder, output, workers = sys.argv[1:]
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
