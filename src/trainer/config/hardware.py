"""The speed and memory of GPUs by their makers' data sheets, and the share that programs reach."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any

from tokpack.display import nearest
from tokpack.errors import FormatError, UsageError, option

# Dense bf16 (or fp16) TFLOP/s by a part of the device's name; the first that matches counts.
PEAKS = {
    "B200": 2250, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H800": 989,
    "H20": 148, "A100": 312, "A800": 312, "L40S": 362, "L40": 181, "L4": 121, "A40": 150,
    "A6000": 155, "A10": 125, "V100": 125, "T4": 65, "4090": 165, "3090": 71, "MI300X": 1307,
}  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """GPUs that work together, in ``nodes`` with ``gpus_per_node`` each.

    For one GPU: ``peak_tflops`` in dense bf16, ``gpu_memory`` in GB, ``memory_bandwidth`` in GB/s,
    ``link_bandwidth`` to the other GPUs of the node in GB/s one way, and ``efficiency``, the share
    of the peak that large matrix products reach. ``network_bandwidth`` is from one node to the
    others, in GB/s one way.
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
        """The peak of a GPU, in FLOP/s."""
        return self.peak_tflops * 1e12

    def seconds(self, bytes_: float, gigabytes: float = 0) -> float:
        """The time to move so many bytes, through memory or at a rate in GB/s."""
        return bytes_ / ((gigabytes or self.memory_bandwidth) * 1e9 * TRAFFIC)


TRAFFIC = 0.8  # the share of a data sheet's bandwidths that programs reach
# Memory is the least total_memory that torch.cuda.get_device_properties shows. Makers' GB are GiB,
# and the driver keeps some for itself: of an H100's 80 GiB it leaves 79.1, which are 84.9e9 bytes.
GPUS = {
    "a100-40": Cluster(PEAKS["A100"], 42.3, 1555, 300, 200, 0.8),
    "a100-80": Cluster(PEAKS["A100"], 84.9, 2039, 300, 200, 0.8),
    "h100": Cluster(PEAKS["H100"], 84.9, 3350, 450, 400, 0.62),
    "h200": Cluster(PEAKS["H200"], 150.1, 4800, 450, 400, 0.62),
    "b200": Cluster(PEAKS["B200"], 191.5, 7700, 900, 400, 0.62),
    "l40s": Cluster(PEAKS["L40S"], 47.6, 864, 32, 50, 0.62),
    "mi300x": Cluster(PEAKS["MI300X"], 206.1, 5300, 448, 400, 0.5),
}
NUMBERS = {one.name for one in fields(Cluster)}


def cluster_of(gpu: str | None = None, nodes: int = 1, gpus_per_node: int = 8) -> Cluster:
    """The GPUs with a name in GPUS, or of a YAML or JSON file with the fields of Cluster.

    The file may also have ``gpu``: the name of a GPU from which it differs. UsageError for an
    unknown name, FormatError for a file with anything else.
    """
    choices, values = f"one of {', '.join(GPUS)}, or a file with its numbers", dict[str, Any]()
    if gpu is not None and os.path.isfile(gpu):
        from tokpack.storage.disk.foreign_yaml import read_yaml

        values = read_yaml(gpu)
        if not isinstance(values, dict) or set(values) - {*NUMBERS, "gpu"}:
            raise FormatError(f"{gpu}: expected numbers for {', '.join(sorted(NUMBERS))}")
        for name in set(values) & NUMBERS:
            if not (type(values[name]) in (int, float) and 0 < values[name] < float("inf")):
                raise FormatError(f"{gpu}: {name} is {values[name]}, expected a number above 0")
        gpu = values.pop("gpu", None)
    values = {"nodes": nodes, "gpus_per_node": gpus_per_node, **values}
    if gpu is None:
        absent = [one.name for one in fields(Cluster) if one.name not in values]
        if len(values) == 2:
            raise UsageError(f"no GPU is named: give {option('gpu')}, {choices}")
        if absent:
            raise FormatError(f"no numbers for {', '.join(absent)} of the GPU: add them, or a gpu")
        return Cluster(**values)
    if str(gpu).lower() not in GPUS:
        near = nearest(str(gpu).lower(), GPUS)
        hint = f"; did you mean {near}?" if near else ""
        raise UsageError(f"GPU {gpu} is not known, only {choices}{hint}")
    return replace(GPUS[str(gpu).lower()], **values)
