"""The flags of plan, encode --plan, status and commit, and what these print about shards."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from tokpack.cli import summary, terminal
from tokpack.cli.parser import Group, flag_names, flags, given_options, parse
from tokpack.counts import counts_last
from tokpack.errors import BusyError, TokpackError, UsageError, WorkerError
from tokpack.quantities import bytes_text, count_text, counted, time_text
from tokpack.shards import SHARD_BYTES
from tokpack.storage.objects.urls import is_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tokpack.cli.parser import Page
    from tokpack.dataset import Manifest
    from tokpack.encoding import EncodeOptions
    from tokpack.encoding.status import RunStatus
    from tokpack.shards.commit import ShardStatus
    from tokpack.shards.plan import ShardPlan

(SIZE,) = flags(
    "--shard-size SIZE  about so much text in each shard (64GB)",
    shard_size={"default": SHARD_BYTES},
)
GROUP = Group(
    "many machines",
    (
        *flags(
            """
            --plan PREFIX          make shards of what `tokpack shards plan` has planned
            --shard N|N,N-N|auto|next  which ones; auto: the number of this task of a Slurm,
                                   Kubernetes, ... array; next: a free one, and so on until all
                                   are done
            --engine local|ray     this machine, or a Ray cluster, with a task for each shard
                                   (local)
            --ray-address ADDRESS  of the cluster ($RAY_ADDRESS, else the one on this machine)
            """,
            engine={"default": "local"},
        ),
        SIZE,
    ),
)
_SHOWN = 20
_BESIDE_A_PLAN = frozenset(
    ("plan", "shard", "workers", "scratch", "overwrite", "log_interval", "json", "quiet", "debug")
)


def encode(arguments: argparse.Namespace, page: Page) -> int:
    """Make the shards of ``encode --plan``, one after the other."""
    from tokpack.encoding.status import may_pass
    from tokpack.shards.cut import encode_shard
    from tokpack.shards.drive import numbers_of
    from tokpack.shards.plan import load_plan
    from tokpack.shards.take import free_shards

    if not (arguments.plan and arguments.shard):
        raise UsageError("--plan PREFIX and --shard N belong together")
    flags, nothing = flag_names(*page.groups), parse(page, [])
    for name, value in vars(arguments).items():
        if name not in _BESIDE_A_PLAN and value != getattr(nothing, name, None):
            what = flags.get(name, "INPUT")
            raise UsageError(f"{what} beside --plan: the plan says it; leave it out")
    prefix, plan = load_plan(arguments.plan)
    takes = arguments.shard == "next"
    named = [] if takes else numbers_of(arguments.shard, plan.shards)
    numbers = free_shards(plan, prefix) if takes else ((number, None) for number in named)
    datasets = []
    for number, lease in numbers:
        try:
            with terminal.Reporter(arguments.log_interval) as report, _outcome_is_told():
                options = given_options(encode_shard, arguments)
                manifests = encode_shard(
                    plan, prefix, number, **options, progress=report, lease=lease
                )
        except TokpackError as error:
            if not takes or (may_pass(error) and not isinstance(error, BusyError)):
                raise
            if not isinstance(error, BusyError):
                terminal.note(f"shard {number} failed: {error}")
            continue
        names = plan.prefixes(prefix, number).values()
        for name, manifest in zip(names, manifests, strict=True):
            there = "" if report.first else " (it was there)"
            terminal.say(summary.describe(name, manifest) + there)
            datasets.append((name, manifest))
    summary.print_made(datasets, arguments)
    return 0


@contextmanager
def _outcome_is_told() -> Iterator[None]:
    """Tell the caller by the exit code whether another try may succeed."""
    from tokpack.encoding.status import may_pass
    from tokpack.shards.drive import BUSY

    try:
        yield
    except BusyError as error:
        error.exit_code = BUSY
        raise
    except TokpackError as error:
        if may_pass(error):
            error.exit_code = WorkerError.exit_code
        raise


def check_engine(arguments: argparse.Namespace) -> None:
    """Refuse flags for an engine if none is requested. UsageError."""
    for name, is_set in (
        ("--ray-address", arguments.ray_address is not None),
        ("--shard-size", arguments.shard_size != SIZE.settings["default"]),
    ):
        if is_set and arguments.engine == "local":
            raise UsageError(f"{name} is for --engine ray, and for tokpack shards plan")


def encode_with_engine(arguments: argparse.Namespace, options: EncodeOptions) -> int:
    """Do everything of ``encode --engine``: plan, a task for each shard, commit."""
    from tokpack.shards.commit import commit
    from tokpack.shards.cut import make_shard_plan
    from tokpack.shards.drive import ShardRunner
    from tokpack.shards.plan import save_plan
    from tokpack.shards.ray_engine import RayEngine

    if arguments.files:
        raise UsageError("--files is for one machine: here each shard is one, of --shard-size")
    prefix = options.output if is_url(options.output) else os.path.abspath(options.output)
    plan = make_shard_plan(options, arguments.shard_size)
    with redirect_stdout(sys.stderr):  # since Ray prints what happens to nodes
        engine = RayEngine(arguments.ray_address, arguments.workers or None)
        more = ["--workers", str(engine.cpus), "--quiet"]
        more += ["--scratch", arguments.scratch] if arguments.scratch else []
        try:
            plan = save_plan(plan, prefix, overwrite=arguments.overwrite)
            with terminal.Reporter(arguments.log_interval) as report:
                ShardRunner(plan, prefix, engine, more, show=report, say=terminal.note).run()
        finally:
            engine.close()
    manifests = commit(plan, prefix, overwrite=arguments.overwrite)
    show_committed(plan, prefix, manifests, arguments)
    return 0


def show_committed(
    plan: ShardPlan, prefix: str, manifests: Sequence[Manifest], arguments: argparse.Namespace
) -> None:
    """Print the datasets that the shards have become."""
    results = list(zip(plan.whole(prefix).values(), manifests, strict=True))
    for name, manifest in results:
        terminal.say(f"{summary.describe(name, manifest)} in {_shards(plan)}")
    terminal.say("  it needs the shards where they are; move it only together with them")
    summary.print_made(results, arguments)


def tell_plan(plan: ShardPlan, prefix: str) -> None:
    """Print what was planned, and the next command."""
    stored = bytes_text(plan.size)
    inputs = counted(plan.inputs, "input")
    terminal.say(f"{prefix}: {_shards(plan)} of {inputs}, {stored} as they are stored")
    name = shlex.quote(prefix)
    terminal.say("next, on any machines, in any order:")
    terminal.say(f"  tokpack encode --plan {name} --shard 0    to --shard {plan.shards - 1}")
    terminal.say(f"then: tokpack shards commit {name}")


def plan_facts(plan: ShardPlan, prefix: str) -> dict[str, Any]:
    """The facts about a plan, for programs."""
    return {
        "prefix": prefix,
        "plan": plan.id,
        "shards": plan.shards,
        "inputs": plan.inputs,
        "bytes": plan.size,
    }


def status_facts(plan: ShardPlan, prefix: str, statuses: Sequence[ShardStatus]) -> dict[str, Any]:
    """The progress of a plan, for programs."""
    from tokpack.shards.commit import missing

    return {
        **plan_facts(plan, prefix),
        "states": _counts(statuses),
        "missing": missing(statuses),
        "each": [_shard_facts(one) for one in statuses],
    }


def _shard_facts(one: ShardStatus) -> dict[str, Any]:
    facts: dict[str, Any] = {"shard": one.number, "state": one.state}
    if report := one.report:
        facts |= {"host": report.host, "pid": report.pid, "seconds": round(report.seconds, 1)}
        facts |= {"tokens": report.tokens, "message": report.message}
    return facts


def run_facts(run: RunStatus) -> dict[str, Any]:
    """The progress of a run on this machine, for programs."""
    from dataclasses import asdict

    report = counts_last(asdict(run.report)) if run.report else {}
    return {"folder": run.folder, "state": run.state, **report}


def show_run(run: RunStatus) -> None:
    """Print the progress of a run on this machine."""
    report = run.report
    if report is None:
        terminal.put(f"{run.folder}: {run.state}")
        return
    by = f"process {report.pid} on {report.host}, for {time_text(report.seconds)}"
    terminal.put(f"{run.folder}: {run.state}, {by}")
    of = f"{bytes_text(report.done)} of {bytes_text(report.total)}"
    words = [f"{of} read" if report.total else f"{bytes_text(report.text_bytes)} of text"]
    words += [f"{count_text(report.documents)} docs, {count_text(report.tokens)} tokens"]
    words += [f"{report.rejected:,} bad records"] if report.rejected else []
    words += report.chosen()
    if run.state == "running" and report.seconds_left is not None:
        words.append(f"some {time_text(report.seconds_left)} left")
    terminal.put("  " + ", ".join(words))
    if report.message:
        terminal.put(f"  {report.message}")
    if run.advice:
        terminal.put(f"  {run.advice}")


def show_status(
    plan: ShardPlan, prefix: str, statuses: Sequence[ShardStatus], *, every: bool
) -> None:
    """Print the progress of a plan: counts, the shards that need attention, the next command."""
    from tokpack.shards.commit import missing, ranges

    counts = ", ".join(f"{count:,} {state}" for state, count in _counts(statuses).items())
    terminal.put(f"{prefix}: {_shards(plan)}: {counts}")
    listed = [one for one in statuses if every or one.state not in ("done", "open")]
    for one in listed if every else listed[:_SHOWN]:
        terminal.put(f"  {one.number:>5}  {one.state:<8}{_told(one)}".rstrip())
    if not every and len(listed) > _SHOWN:
        terminal.put(f"  and {len(listed) - _SHOWN:,} more: --all lists them")
    left = missing(statuses)
    name = shlex.quote(prefix)
    # Files of a shard that was done are gone: the rest of it will be replaced.
    incomplete = [one.number for one in statuses if one.state == "open" and one.report]
    whole = sorted({*left} - {*incomplete})
    for numbers, flag in ((whole, ""), (incomplete, " --overwrite")):
        if numbers:
            command = f"tokpack encode --plan {name} --shard {ranges(numbers)}{flag}"
            terminal.put(f"to make what is missing: {command}")
    if all(one.state == "done" for one in statuses):
        terminal.put(f"all are there: tokpack shards commit {name}")


def _shards(plan: ShardPlan) -> str:
    return counted(plan.shards, "shard")


def _counts(statuses: Sequence[ShardStatus]) -> dict[str, int]:
    return dict(Counter(one.state for one in statuses))


def _told(one: ShardStatus) -> str:
    report = one.report
    if report is None:
        return ""
    words = [f"{report.host}, {time_text(report.seconds)}"]
    if one.state == "running" and report.total:
        words.append(f"{min(1.0, report.done / report.total):.0%}")
    if report.tokens:
        words.append(f"{count_text(report.tokens)} tokens")
    if report.message:
        words.append(report.message)
    return ", ".join(words)
