"""A dataset in shards, made by many machines: a plan, the shards, a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.face import face

if TYPE_CHECKING:
    from tokpack.shards.committed import ShardStatus as ShardStatus
    from tokpack.shards.committed import commit as commit
    from tokpack.shards.committed import data_path as data_path
    from tokpack.shards.committed import missing as missing
    from tokpack.shards.committed import ranges as ranges
    from tokpack.shards.committed import survey as survey
    from tokpack.shards.committed import write_data_path as write_data_path
    from tokpack.shards.cut import check_fits as check_fits
    from tokpack.shards.cut import encode_shard as encode_shard
    from tokpack.shards.cut import make_shard_plan as make_shard_plan
    from tokpack.shards.drive import BUSY as BUSY
    from tokpack.shards.drive import ShardEngine as ShardEngine
    from tokpack.shards.drive import ShardRunner as ShardRunner
    from tokpack.shards.drive import numbers_of as numbers_of
    from tokpack.shards.plan import ShardPlan as ShardPlan
    from tokpack.shards.plan import Work as Work
    from tokpack.shards.plan import load_plan as load_plan
    from tokpack.shards.plan import plan_folder as plan_folder
    from tokpack.shards.plan import plan_path as plan_path
    from tokpack.shards.plan import prefix_of as prefix_of
    from tokpack.shards.plan import save_plan as save_plan
    from tokpack.shards.ray_engine import RayEngine as RayEngine
    from tokpack.shards.slurm_engine import SlurmEngine as SlurmEngine
    from tokpack.shards.take import free_shards as free_shards
    from tokpack.shards.tasks import TaskList as TaskList
    from tokpack.shards.tasks import make_result as make_result
    from tokpack.shards.tasks import run_tasks as run_tasks

SHARD_BYTES = 64 * 10**9  # of text in a shard, by default

__getattr__, __all__ = face(
    __name__,
    {
        "committed": "ShardStatus commit data_path missing ranges survey write_data_path",
        "cut": "check_fits encode_shard make_shard_plan",
        "drive": "BUSY ShardEngine ShardRunner numbers_of",
        "plan": "ShardPlan Work load_plan plan_folder plan_path prefix_of save_plan",
        "ray_engine": "RayEngine",
        "slurm_engine": "SlurmEngine",
        "take": "free_shards",
        "tasks": "TaskList make_result run_tasks",
    },
)
