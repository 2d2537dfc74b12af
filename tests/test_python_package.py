"""What a user installs and starts: the library and the wheel, its launcher, and the tutorial."""
import base64
import ctypes
import hashlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest.mock
import zipfile

import mkernel
from mkernel import _library, launch
from cases import Skip, case, main, refuses, run, says

TUTORIAL = "docs/examples/tutorial.py"


@case
def functions_are_declared_as_the_header_has_them():
    text = ""
    for header in ("core/mkernel.h", "core/ops/registry.h"):
        with open(header) as f:
            text += re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    kinds = {"const char *": ctypes.c_char_p, "uint32_t ": ctypes.c_uint32, "uint64_t ": ctypes.c_uint64,
             "int ": ctypes.c_int, "double ": ctypes.c_double, "void *": ctypes.c_void_p, "void ": None}
    for name, (result, arguments) in _library.FUNCTIONS.items():
        found = re.search(rf"^([^\n]*?){name}\((.*?)\);", text, re.M | re.S)
        assert found, f"{name} is not in the header"
        assert kinds[found.group(1)] is result, (name, found.group(1))
        declared = [] if found.group(2) == "void" else found.group(2).split(",")
        assert len(declared) == len(arguments), (name, declared)
        for text_of, kind in zip(declared, arguments):
            size = 8 if "*" in text_of or "uint64_t" in text_of else 4
            assert ctypes.sizeof(kind) == size, (name, text_of)


@case
def another_library_is_refused():
    command = [sys.executable, "-c", "import mkernel"]
    said = run(command, 1, env={**os.environ, "MKERNEL_LIBRARY": "/nowhere/libmkernel.so"})
    says(said, "ImportError: mkernel's library cannot be loaded: /nowhere/libmkernel.so", "libopenblas")
    said = run(command, 1, env={**os.environ, "MKERNEL_LIBRARY": "libc.so.6"})
    says(said, "libc.so.6 is not a libmkernel of version " + mkernel.__version__)
    number = _library.VERSION_NUMBER
    try:
        _library.VERSION_NUMBER += 100
        refuses("runs with libmkernel " + mkernel.__version__, mkernel.init)
        try:
            _library.load()
            raise AssertionError("a library of another version was loaded")
        except ImportError as e:
            says(str(e), "is mkernel " + mkernel.__version__, "install the wheel that was built with it")
    finally:
        _library.VERSION_NUMBER = number


@case
def the_wheel_is_whole():
    with zipfile.ZipFile(os.environ["MK_WHEEL"]) as z:
        assert z.testzip() is None
        names = z.namelist()
        record = next(n for n in names if n.endswith(".dist-info/RECORD"))
        lines = [line.split(",") for line in z.read(record).decode().splitlines()]
        assert sorted(line[0] for line in lines) == sorted(names)
        for name, digest, size in lines:
            if name == record:
                continue
            data = z.read(name)
            wanted = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert digest == "sha256=" + wanted and int(size) == len(data), name
        for wanted in ("mkernel/__init__.py", "mkernel/py.typed", "mkernel/libmkernel.so.0", "mkernel/mkernel"):
            assert wanted in names


@case
def pip_installs_the_wheel_into_a_fresh_venv():
    wheel = os.path.abspath(os.environ["MK_WHEEL"])
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
        if made.returncode:
            raise Skip("no venv here (apt-get install python3-venv)")
        python = os.path.join(folder, "bin", "python")
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        run([python, "-m", "pip", "install", "--no-index", "--no-deps", wheel], env=clean)
        said = run([python, "-c", "import mkernel, sys; print(mkernel.__file__, mkernel.init())"], env=clean, cwd=folder)
        says(said, folder, "rank 0 of 1 x 1 on cpu")
        command = os.path.join(folder, "bin", "mkernel")
        says(run([command, "--version"], env=clean, cwd=folder), mkernel.__version__)
        says(run([command, "run", "ag_gemm", "--gpus", "2", "--shape", "64,64,64", "--check"], env=clean, cwd=folder), "ag_gemm")
        run([command, "run", "nothing"], 2, env=clean, cwd=folder)  # its status
        program = os.path.join(os.path.dirname(run([python, "-c", "import mkernel; print(mkernel.__file__)"], env=clean, cwd=folder).strip()), "mkernel")
        with open(program, "rb+") as f:  # a library that the system has not
            data = f.read()
            f.seek(data.index(b"libsqlite3.so.0"))
            f.write(b"libsqlite0.so.0")
        says(run([command, "--version"], 2, env=clean, cwd=folder), "mkernel: this system has no libsqlite0.so.0 (Debian: apt-get install")
        os.remove(program)
        says(run([command, "--version"], 1, env=clean, cwd=folder), "install the wheel")
        run([python, "-m", "pip", "uninstall", "-y", "mkernel"], env=clean)
        assert not [f for _, _, files in os.walk(folder) for f in files if "mkernel" in f]


@case
def the_tutorial_runs_on_two_ranks():
    said = run([sys.executable, "-m", "mkernel.launch", "-n", "2", TUTORIAL, "--numpy"])
    says(said, "tutorial: rank 0 of 2 done", "tutorial: rank 1 of 2 done",
         "refused: ag_gemm: A is [64, 128] and B [100, 128]", "gemm_rs (128, 128, 128)")


@case
def a_port_of_a_job_is_one_that_no_connection_gets():
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        connections = int(f.read().split()[0])
    assert connections >= 2 * launch.FIRST_PORT, "this machine gives connections nearly all ports"
    ports = {launch.free_port() for _ in range(50)}
    assert len(ports) > 25 and all(launch.FIRST_PORT <= port < connections for port in ports), ports
    with tempfile.NamedTemporaryFile("w") as f:  # connections get nearly all
        f.write("1024 65535")
        f.flush()
        assert launch.FIRST_PORT <= launch.free_port(f.name) < 65536
    assert launch.FIRST_PORT <= launch.free_port("/nowhere") < 32768
    taken = launch.free_port()
    with socket.socket() as s, unittest.mock.patch("random.SystemRandom") as chance:  # what is in use is passed over
        s.bind(("127.0.0.1", taken))
        s.listen()
        chance().sample.return_value = [taken, min(ports - {taken})]
        assert launch.free_port() != taken
        chance().sample.return_value = [taken]
        try:
            launch.free_port()
            raise AssertionError("a port that is in use was taken")
        except OSError as e:
            says(str(e), f"no port from {launch.FIRST_PORT} to")


@case
def ranks_meet_on_a_host_without_ipv4():
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write("import mkernel\nwith mkernel.init(device='cpu', heap_bytes=1 << 20) as comm:\n    print('met')\n")
        f.flush()
        no_ipv4 = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"', "sh"]
        if subprocess.run([*no_ipv4, "true"], stderr=subprocess.DEVNULL).returncode:
            raise Skip("no network namespaces here (unshare -rn, ip)")
        assert run([*no_ipv4, sys.executable, "-m", "mkernel.launch", "-n", "2", f.name]).count("met") == 2


@case
def a_rank_that_fails_ends_the_launcher_with_its_status():
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write("import os, sys\nsys.exit(3 if os.environ['RANK'] == '1' else 0)\n")
        f.flush()
        says(run([sys.executable, "-m", "mkernel.launch", "-n", "3", f.name], 3), "rank 1 ended with status 3")
    run([sys.executable, "-m", "mkernel.launch", "-n", "0", "x.py"], 2)


if __name__ == "__main__":
    main()
