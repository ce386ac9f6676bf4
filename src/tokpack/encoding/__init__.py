"""From documents to a dataset: plan, parts, commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.encoding.options import EncodeOptions as EncodeOptions
from tokpack.encoding.options import megatron_names as megatron_names
from tokpack.encoding.options import worker_count as worker_count
from tokpack.face import face

if TYPE_CHECKING:
    from tokpack.encoding.choose import importable_name as importable_name
    from tokpack.encoding.columns import columns_in_process as columns_in_process
    from tokpack.encoding.folder import UNFINISHED_SUFFIX as UNFINISHED_SUFFIX
    from tokpack.encoding.part import first_batches as first_batches
    from tokpack.encoding.part import without_records as without_records
    from tokpack.encoding.plan import MAX_PART_BYTES as MAX_PART_BYTES
    from tokpack.encoding.plan import MIN_PART_BYTES as MIN_PART_BYTES
    from tokpack.encoding.plan import Plan as Plan
    from tokpack.encoding.plan import PlannedRun as PlannedRun
    from tokpack.encoding.plan import deciding_options as deciding_options
    from tokpack.encoding.plan import prepare as prepare
    from tokpack.encoding.publish import REJECTS_KIND as REJECTS_KIND
    from tokpack.encoding.publish import rejects_path as rejects_path
    from tokpack.encoding.resume import check_budget as check_budget
    from tokpack.encoding.run import encode as encode
    from tokpack.encoding.run import encode_planned as encode_planned
    from tokpack.encoding.run import ends_on_sigterm as ends_on_sigterm
    from tokpack.encoding.setup import TokenizerSetup as TokenizerSetup
    from tokpack.encoding.setup import described as described
    from tokpack.encoding.setup import load_setup as load_setup
    from tokpack.encoding.status import BEAT_SECONDS as BEAT_SECONDS
    from tokpack.encoding.status import LOCAL_BEAT_SECONDS as LOCAL_BEAT_SECONDS
    from tokpack.encoding.status import LOST_SECONDS as LOST_SECONDS
    from tokpack.encoding.status import Report as Report
    from tokpack.encoding.status import RunReporter as RunReporter
    from tokpack.encoding.status import RunStatus as RunStatus
    from tokpack.encoding.status import begun_prefix as begun_prefix
    from tokpack.encoding.status import finished as finished
    from tokpack.encoding.status import may_pass as may_pass
    from tokpack.encoding.status import parse_report as parse_report
    from tokpack.encoding.status import run_status as run_status

# The command line needs only the options, which load fast.
__getattr__, __all__ = face(
    __name__,
    {
        "choose": "importable_name",
        "columns": "columns_in_process",
        "folder": "UNFINISHED_SUFFIX",
        "part": "first_batches without_records",
        "plan": "MAX_PART_BYTES MIN_PART_BYTES Plan PlannedRun deciding_options prepare",
        "publish": "REJECTS_KIND rejects_path",
        "resume": "check_budget",
        "run": "encode encode_planned ends_on_sigterm",
        "setup": "TokenizerSetup described load_setup",
        "status": (
            "BEAT_SECONDS LOCAL_BEAT_SECONDS LOST_SECONDS Report RunReporter RunStatus "
            "begun_prefix finished may_pass parse_report run_status"
        ),
    },
)
