"""The virtual environment of DeepSpeed: its packages in front of those of the one with torch.

Rule: the one with torch is left as it is.
"""
import glob
import os
import subprocess

TOOLS = ["wheel==0.48.0", "setuptools==81.0.0", "ninja==1.13.2"]
DEEPSPEED = "deepspeed==0.19.8"
INSTALL_S = 600


class Unavailable(Exception):
    """Why it cannot be had."""


def cache():
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "zerod")


def python_with_torch():
    """What $ZEROD_PYTHON says, else the newest that tests/run.sh made."""
    made = glob.glob(os.path.join(cache(), "python-*", "complete"))
    newest = os.path.dirname(max(made, key=os.path.getmtime)) if made else cache()
    return os.environ.get("ZEROD_PYTHON") or os.path.join(newest, "bin", "python")


def call(what, *command):
    environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    try:
        # cwd: no file of torch's name may lie there
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=INSTALL_S,
                              env=environment, cwd="/", check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise Unavailable(f"{what}: {lines[-1] if lines else done.returncode}")
    return done.stdout


def site_packages(python):
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return call("look for packages", python, "-c", program).strip()


def ensure(python):
    """Path of the interpreter with DeepSpeed and the torch of `python`; the first call makes it."""
    directory = os.path.join(cache(), "python-bench")
    own, done = os.path.join(directory, "bin", "python"), os.path.join(directory, "zerod-bench")
    made_of = f"{DEEPSPEED} {python}\n"
    if os.path.exists(done):
        with open(done, encoding="utf-8") as file:
            if file.read() == made_of:
                return own
    call("make the environment", python, "-m", "venv", "--clear", directory)
    with open(os.path.join(site_packages(own), "zerod.pth"), "w", encoding="utf-8") as file:
        file.write(site_packages(python) + "\n")
    call("install tools", own, "-m", "pip", "install", "-q", *TOOLS)
    call("install DeepSpeed", own, "-m", "pip", "install", "-q", "--no-build-isolation", DEEPSPEED)
    call("import DeepSpeed", own, "-c", "import deepspeed")
    with open(done, "w", encoding="utf-8") as file:
        file.write(made_of)
    return own
