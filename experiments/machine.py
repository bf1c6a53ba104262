"""What results were measured on: machine.txt beside them, without the machine's name and without paths."""
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def said(*command):
    """The first line that a command prints, if there is such a command."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else "unknown"


def field(path, name):
    """What a file of the system says of a name, the first time."""
    try:
        found = re.search(rf"^{name}\s*:\s*(.*)$", pathlib.Path(path).read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else "unknown"


def commit():
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "Cargo.lock", "crates"], cwd=ROOT, capture_output=True)
    return said("git", "rev-parse", "HEAD") + (" with changes" if changed.returncode == 1 else "")


def describe():
    memory = field("/proc/meminfo", "MemTotal").split()
    lines = {
        "processor": field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{int(memory[0]) / 2**20:.1f} GiB" if memory[0].isdigit() else memory[0],
        "kernel": f"{platform.system()} {platform.release()}",
        "compiler": said("rustc", "-V"),
        "commit": commit(),
    }
    return "".join(f"{name}: {value}\n" for name, value in lines.items())


def write(folder):
    (folder / "machine.txt").write_text(describe())
