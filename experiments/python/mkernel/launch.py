"""Starts N ranks of a Python program on this host, where torchrun is not there:

    python3 -m mkernel.launch -n 2 program.py ARGUMENTS

The ranks get torchrun's variables and a secret of the job. Where one ends with another status than 0, the others
are ended after 5 s, and that status is the launcher's.
"""
from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time

GRACE = 5.0  # s, for ranks to say what became of the job


FIRST_PORT = 8192


def _connections_from(path: str) -> int:
    """The first port that the kernel gives to connections."""
    try:
        with open(path) as f:
            return int(f.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768


def here():
    """This host for ranks that are all on it: family and address, in IPv6 where there is no IPv4."""
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", 0))
            return socket.AF_INET, "127.0.0.1"
        except OSError:
            return socket.AF_INET6, "::1"


def free_port(given="/proc/sys/net/ipv4/ip_local_port_range") -> int:
    """A port that nobody listens on, for rank 0 to listen on soon. The kernel gives it to no connection meanwhile, as
    it may one that it chooses itself: it lies below those (where there is room below them)."""
    end = _connections_from(given)
    if end < 2 * FIRST_PORT:
        end = 65536
    family, address = here()
    for port in random.SystemRandom().sample(range(FIRST_PORT, end), 1000):
        with socket.socket(family) as s:
            try:
                s.bind((address, port))
                return port
            except OSError:
                continue
    raise OSError(f"no port from {FIRST_PORT} to {end - 1} is free")


def environment(rank: int, world: int, port: int, token: str) -> dict:
    """The variables of one rank of `world` on this host."""
    return {
        **os.environ,
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": here()[1], "MASTER_PORT": str(port), "MKERNEL_PORT": str(port), "MKERNEL_TOKEN": token,
    }


def launch(command, world: int) -> int:
    """Runs `command` as `world` ranks. Returns the status: 0, or that of the first rank that failed."""
    port, token = free_port(), secrets.token_hex(16)
    ranks = []
    status = 0
    try:
        for rank in range(world):
            ranks.append(subprocess.Popen(command, env=environment(rank, world, port, token)))
        left, end = set(range(world)), None
        while left and (end is None or time.monotonic() < end):
            for rank in sorted(left):
                if ranks[rank].poll() is not None:
                    left.discard(rank)
                    if ranks[rank].returncode and not status:
                        status, end = ranks[rank].returncode, time.monotonic() + GRACE
                        print(f"mkernel.launch: rank {rank} ended with status {status}", file=sys.stderr)
            time.sleep(0.02)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
        for rank in ranks:
            rank.wait()
    return status if status >= 0 else 128 - status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m mkernel.launch", description="N ranks of a program on this host")
    parser.add_argument("-n", type=int, default=2, metavar="N", help="ranks (default 2)")
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.n < 1:
        parser.error("N is 1 at least")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return launch([sys.executable, options.program, *options.arguments], options.n)


if __name__ == "__main__":
    sys.exit(main())
