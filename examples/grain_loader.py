"""Batches for JAX by Grain, as MaxText takes them: python examples/grain_loader.py

Run it in the folder with the datasets of encode_and_look.py. Needs grain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grain
import numpy as np

from tokpack import SampleIterator, open_blend

if TYPE_CHECKING:
    from tokpack.samples import MicroBatches

SEQUENCE, BATCH, STEPS = 64, 8, 20


class Batches(grain.DatasetIterator[dict[str, Any]]):
    """Global batches of a blend, of which each host gets its rows.

    Its state is the same on all hosts and may be set on another number of them. Orbax saves it
    with the model's, as that of any iterator of Grain.
    """

    def __init__(self, blend: dict[str, Any], host: int, hosts: int, threads: int = 4) -> None:
        super().__init__()
        self.samples = open_blend(blend, samples=STEPS * BATCH).train
        rows = BATCH // hosts
        self.threads = threads
        self.batches = SampleIterator(
            self.samples, rows, rank=host, world_size=hosts, load=self.load
        )

    def load(self, batches: MicroBatches) -> grain.DatasetIterator[dict[str, Any]]:
        """Lists of sample numbers become batches, in the same order, made ahead by threads."""
        numbers = grain.MapDataset.source(list(batches))
        options = grain.ReadOptions(num_threads=self.threads, prefetch_buffer_size=16)
        return iter(numbers.map(self.samples.batch).to_iter_dataset(options))

    def __next__(self) -> dict[str, Any]:
        batch = next(self.batches)
        positions = batch["position_ids"]
        documents = np.cumsum(positions == 0, axis=1, dtype=np.int32)  # of a row, from 1
        return {
            "inputs": batch["tokens"],
            "inputs_position": positions,
            "inputs_segmentation": documents,
            "targets": batch["labels"],
            "targets_position": positions,
            "targets_segmentation": documents * (batch["loss_mask"] > 0),  # 0: not trained
        }

    def get_state(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        self.batches.load_state_dict(state)


def main() -> None:
    blend = {
        "datasets": {"code": 0.7, "manual": 0.3},
        "seq_length": SEQUENCE,
        "document_boundaries": True,  # positions begin anew with each document
    }
    hosts = [Batches(blend, host, 2) for host in range(2)]
    for _ in range(STEPS // 2):
        for host in hosts:
            next(host)
    state = hosts[0].get_state()
    alone = Batches(blend, 0, 1)  # goes on with one host
    alone.set_state(state)
    expected = alone.samples[STEPS // 2 * BATCH]["tokens"]
    if (next(alone)["inputs"][0] != expected).any():
        raise SystemExit("the run did not resume where it stopped")
    print(f"2 hosts, then 1: resumes with sample {state['consumed_samples']}")


if __name__ == "__main__":
    main()
