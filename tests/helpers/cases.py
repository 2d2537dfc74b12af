"""Cases in Python, told in cmocka's lines so that tests/run.sh counts them by name.

A file of cases marks each with @case and ends with main(). What several ranks do is a function marked @scene, which
ranks(N, scene) runs in N processes of this same file.
"""
import os
import subprocess
import sys
import tempfile
import traceback

from mkernel.launch import environment, free_port

_cases, _scenes = [], {}
LIMIT = 500  # s for the ranks of one scene, on a machine with much else to do


class Skip(Exception):
    """Raised by a case that cannot run here, with the reason."""


def case(function):
    _cases.append(function)
    return function


def scene(function):
    _scenes[function.__name__] = function
    return function


def run(command, status=0, **more):
    """Runs a command, and fails with what it says where its status is not `status`. Returns what it says."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, **more)
    assert done.returncode == status, f"status {done.returncode} of {command}: {done.stdout[-4000:]}"
    return done.stdout


def ranks(world, what, *arguments, status=0):
    """Runs a scene as `world` ranks. Returns what each says; fails where one ends with another status."""
    port, running, said = free_port(), [], []
    for rank in range(world):
        out = tempfile.TemporaryFile("w+")
        command = [sys.executable, sys.argv[0], "--scene", what.__name__, *map(str, arguments)]
        running.append((subprocess.Popen(command, env=environment(rank, world, port, "a test's"), stdout=out,
                                         stderr=subprocess.STDOUT), out))
    try:
        for process, _ in running:
            process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        status = "ended in time"
    for process, out in running:
        if process.poll() is None:
            process.kill()
            process.wait()
        out.seek(0)
        said.append(out.read())
        out.close()
    statuses = [process.returncode for process, _ in running]
    assert statuses == [status] * world, f"{what.__name__}: {statuses}, not {status}\n" + "\n".join(said)[-6000:]
    return said


def says(text, *wanted):
    for words in wanted:
        assert words in text, f"'{words}' is not in: {text}"


def refuses(words, function, *arguments, **more):
    """The call raises mkernel.Refused with a sentence that has these words. Returns it."""
    import mkernel

    try:
        function(*arguments, **more)
    except mkernel.Refused as e:
        says(str(e), words)
        return e
    raise AssertionError(f"not refused, though: {words}")


def main():
    if sys.argv[1:2] == ["--scene"]:
        _scenes[sys.argv[2]](*sys.argv[3:])
        return
    wanted, failed = sys.argv[1:], 0
    for function in _cases:
        name = function.__name__
        if wanted and name not in wanted:
            continue
        print(f"[ RUN      ] {name}", flush=True)
        try:
            function()
            print(f"[       OK ] {name}", flush=True)
        except Skip as e:
            print(f"skipped: {e}\n[  SKIPPED ] {name}", flush=True)
        except Exception:
            failed += 1
            print(traceback.format_exc() + f"[  FAILED  ] {name}", flush=True)
    sys.exit(failed != 0)
