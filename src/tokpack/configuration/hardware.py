"""What GPUs can do, from their makers' data sheets, and which part of it programs get."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tokpack.display import nearest
from tokpack.errors import UsageError

# Dense bf16 (or fp16) TFLOP/s by what the device's name holds; the first that fits counts.
PEAKS = {
    "B200": 2250, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H800": 989,
    "H20": 148, "A100": 312, "A800": 312, "L40S": 362, "L40": 181, "L4": 121, "A40": 150,
    "A6000": 155, "A10": 125, "V100": 125, "T4": 65, "4090": 165, "3090": 71, "MI300X": 1307,
}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """GPUs that work together. Rates are of one GPU, but ``network_bandwidth`` is that of a node.

    Dense bf16 TFLOP/s, memory in GB; GB/s of the memory, and, one way, of the links to the other
    GPUs of a node and of the network to other nodes. ``efficiency`` is the share of the peak that
    large products of matrices reach.
    """

    peak_tflops: float
    gpu_memory: float
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    efficiency: float
    nodes: int = 1
    gpus_per_node: int = 8

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def peak(self) -> float:
        """FLOP/s of a GPU."""
        return self.peak_tflops * 1e12

    def seconds(self, bytes_: float, gigabytes: float = 0) -> float:
        """How long it takes to move so many bytes, through memory or at so many GB/s."""
        return bytes_ / ((gigabytes or self.memory_bandwidth) * 1e9 * TRAFFIC)


TRAFFIC = 0.8  # share of a data sheet's bandwidths that programs reach
GPUS = {
    "a100-40": Cluster(PEAKS["A100"], 40, 1555, 300, 200, 0.8),
    "a100-80": Cluster(PEAKS["A100"], 80, 2039, 300, 200, 0.8),
    "h100": Cluster(PEAKS["H100"], 80, 3350, 450, 400, 0.62),
    "h200": Cluster(PEAKS["H200"], 141, 4800, 450, 400, 0.62),
    "b200": Cluster(PEAKS["B200"], 180, 7700, 900, 400, 0.62),
    "l40s": Cluster(PEAKS["L40S"], 48, 864, 32, 50, 0.62),
    "mi300x": Cluster(PEAKS["MI300X"], 192, 5300, 448, 400, 0.5),
}
NUMBERS = [one.name for one in fields(Cluster) if one.type == "float"]


def cluster_of(name: str | None, numbers: dict[str, float]) -> Cluster:
    """The GPUs ``name``, with ``numbers`` that are otherwise; UsageError for one that nobody knows.

    Without a name all of NUMBERS have to be given.
    """
    for key, value in numbers.items():
        if not 0 < value < float("inf"):
            raise UsageError(f"{key} is {value:g}, expected a number above 0")
    if name is None:
        absent = [key for key in NUMBERS if key not in numbers]
        if absent:
            raise UsageError(
                f"no GPU: add --gpu with one of {', '.join(GPUS)}, or give its numbers too: "
                f"{', '.join(absent)}"
            )
        return Cluster(**numbers)  # type: ignore[arg-type]
    if name.lower() not in GPUS:
        near = nearest(name.lower(), GPUS)
        hint = f"; did you mean {near}?" if near else ""
        raise UsageError(f"GPU {name} is not known, only {', '.join(GPUS)}{hint}")
    return replace(GPUS[name.lower()], **numbers)  # type: ignore[arg-type]
