"""Cases in Python, told in cmocka's lines so that tests/run.sh counts them by name.

A file of cases marks each with @case and ends with main(). What several ranks do is a function marked @scene, which
ranks(N, scene) runs in N processes of this same file. These are forked by the first process, which has imported the file
and nothing more: to import PyTorch takes 2 s of a core. Cases run in a process of their own.
"""
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from mkernel.launch import environment, free_port

_cases, _scenes, _first = [], {}, None  # the last: where the first process listens
LIMIT = 500  # s for the ranks of one scene, on a machine with much else to do


class Skip(Exception):
    """Raised by a case that cannot run here, with the reason."""


def case(function):
    _cases.append(function)
    return function


def scene(function):
    _scenes[function.__name__] = function
    return function


@scene
def program(path, *arguments):
    """What `python3 PATH ARGUMENTS...` does: ranks(N, program, PATH, ARGUMENTS...) is mkernel.launch, but nothing that the first process has is imported again."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


def run(command, status=0, **more):
    """Runs a command, and fails with what it says where its status is not `status`. Returns what it says."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, **more)
    assert done.returncode == status, f"status {done.returncode} of {command}: {done.stdout[-4000:]}"
    return done.stdout


def ranks(world, what, *arguments, status=0):
    """Runs a scene as `world` ranks. Returns what each says; fails where one ends with another status."""
    port = free_port()
    environments = [environment(rank, world, port, "a test's") for rank in range(world)]
    _first.send((environments, what.__name__, [str(x) for x in arguments]))
    statuses, said = _first.recv()
    assert statuses == [status] * world, f"{what.__name__}: {statuses}, not {status}\n" + "\n".join(said)[-6000:]
    return said


def _fork_ranks(asked):
    """What the first process does until no more is asked. In a rank it returns the scene and its arguments, else nothing."""
    while True:
        try:
            environments, *scene = asked.recv()
        except EOFError:
            return None
        outs, pids = [tempfile.TemporaryFile("w+") for _ in environments], []
        for variables, out in zip(environments, outs):
            pid = os.fork()
            if pid == 0:
                os.environ.clear()
                os.environ.update(variables)
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
                asked.close()
                return scene
            pids.append(pid)
        statuses = _ended(pids)
        said = []
        for out in outs:
            out.seek(0)
            said.append(out.read())
            out.close()
        asked.send((statuses, said))


def _ended(pids):
    """Statuses of processes; of those that do not end in time, words."""
    statuses, end = dict.fromkeys(pids), time.monotonic() + LIMIT
    while None in statuses.values() and time.monotonic() < end:
        for pid in [pid for pid in pids if statuses[pid] is None]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for pid in [pid for pid in pids if statuses[pid] is None]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        statuses[pid] = f"not ended in {LIMIT} s"
    return list(statuses.values())


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
    global _first
    asked, _first = multiprocessing.Pipe()
    runner = os.fork()
    if runner == 0:
        asked.close()
        sys.exit(_run_cases(sys.argv[1:]))
    _first.close()
    scene = _fork_ranks(asked)
    if scene:
        name, arguments = scene
        _scenes[name](*arguments)
        return
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(runner, 0)[1]) != 0)


def _run_cases(wanted):
    """Returns the number of cases that failed."""
    failed = 0
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
    return failed
