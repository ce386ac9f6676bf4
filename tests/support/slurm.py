"""A Slurm of one node with its own configuration, ports and keys, from Debian's packages.

    apt-get install slurmctld slurmd slurm-client munge

It touches no Slurm that is there. Only root may start it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from support.ports import own_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ReturnToService=2
MaxArraySize=3
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=small Nodes=ALL MaxTime=INFINITE State=UP
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def one_node(folder: Path) -> Iterator[dict[str, str]]:
    """Gives the environment of its commands; no name in ``folder`` may be long, for a socket."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    configuration = folder / "slurm.conf"
    values = {"host": host, "folder": folder, "cpus": os.cpu_count()}
    configuration.write_text(_CONFIGURATION.format(**values, ports=[own_port(), own_port()]))
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    with ExitStack() as stack:
        for command in (
            [*munge, f"--socket={folder}/munge.socket"],
            ["slurmctld", "-D", "-L", f"{folder}/slurmctld.log"],
            ["slurmd", "-D", "-L", f"{folder}/slurmd.log"],
        ):
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            while command[0] == "munged" and not (folder / "munge.socket").exists():
                assert process.poll() is None
                time.sleep(0.02)
        until = time.monotonic() + 60
        while (
            b"idle"
            not in subprocess.run(
                ["sinfo", "-h"], env=environment, capture_output=True, check=False
            ).stdout
        ):
            assert time.monotonic() < until, (folder / "slurmctld.log").read_text()
            time.sleep(0.1)
        yield environment
        subprocess.run(["scancel", "-u", "root"], env=environment, check=False)
