#!/usr/bin/env python3
"""deploy/debian agrees with what is installed; completion offers what zeroctl has.  run.sh builds and installs the packages."""
import fnmatch
import glob
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, Tools  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SHELLS = {"bash": "zeroctl", "zsh": "_zeroctl", "fish": "zeroctl.fish"}


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPLY_S, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tool(name):
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not path:
        raise Skip(f"{name} is not installed")
    return path


def tree():
    return os.path.dirname(os.path.dirname(os.path.abspath(Tools.zerod)))


def installed():
    """What `meson install` installs, with the prefix of a package."""
    return {"usr/" + os.path.relpath(path, prefix) for prefix in [option("prefix")]
            for path in json.loads(run(tool("meson"), "introspect", tree(), "--installed")).values()}


def option(name):
    options = json.loads(run(tool("meson"), "introspect", tree(), "--buildoptions"))
    return next(o["value"] for o in options if o["name"] == name)


def patterns():
    """{file of deploy/debian: patterns in it} of those that say where an installed file goes."""
    found = {}
    for path in glob.glob(f"{ROOT}/deploy/debian/*.install") + [f"{ROOT}/deploy/debian/not-installed"]:
        with open(path, encoding="ascii") as f:
            found[os.path.basename(path)] = [line.split()[0] for line in f]
    return found


def matches(path, pattern):
    return fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, pattern + "/*") or pattern == path + "/*"


def completed(*words):
    """What bash offers at the end of the words."""
    return run("bash", "-c", '. "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _zeroctl; echo "${COMPREPLY[@]}"',
               "bash", f"{tree()}/deploy/zeroctl", "zeroctl", *words).split()


@case
def every_installed_file_is_in_one_package():
    for path in installed():
        holders = [name for name, lines in patterns().items() if any(matches(path, line) for line in lines)]
        assert len(holders) == 1, f"{path}: {holders}"


@case
def every_pattern_finds_a_file():
    files = installed()
    for name, lines in patterns().items():
        for line in lines:
            assert name == "zerod-cuda.install" or any(matches(path, line) for path in files), f"{name}: {line}"


@case
def packages_of_install_files_exist():
    with open(f"{ROOT}/deploy/debian/control", encoding="ascii") as f:
        packages = set(re.findall(r"^Package: (.*)$", f.read(), re.MULTILINE))
    assert packages == {"zerod", "libzero0", "libzero-dev", "zerod-cuda", "python3-zerod", "zerod-doc"}
    files = {os.path.basename(path) for path in glob.glob(f"{ROOT}/deploy/debian/*.*")}
    assert {name.split(".")[0] for name in files} <= packages, files


@case
def build_dependencies_are_those_that_scripts_install():
    with open(f"{ROOT}/deploy/debian/control", encoding="ascii") as f:
        needed = set(re.findall(r"^(?:Build-Depends:)? ([a-z0-9-]+)", f.read().split("Standards-Version")[0], re.MULTILINE))
    with open(f"{ROOT}/deploy/packages", encoding="ascii") as f:
        listed = {line.split()[1] for line in f if line.startswith(("build ", "deb "))}
    assert needed - {"debhelper-compat", "python3"} <= listed, needed - listed


@case
def python_package_has_the_version_of_the_rest():
    with open(f"{ROOT}/client/python/pyproject.toml", encoding="ascii") as f:
        assert re.search(r'^version = "(.*)"', f.read(), re.MULTILINE)[1] == run(Tools.zerod, "--version").split()[1]


@case
def pages_of_programs_and_files():
    assert {f"usr/share/man/{page}" for page in ("man8/zerod.8", "man1/zeroctl.1", "man5/zerod.conf.5", "man5/zeroctl-json.5",
                                                 "man3/zero.3")} <= installed()


@case
def sample_configuration_says_nothing():
    with open(f"{tree()}/deploy/zerod.conf.example", encoding="ascii") as f:
        assert {line[0] for line in f if line.strip()} == {"#", "["}


@case
def apparmor_profile_has_the_directories_of_the_unit():
    with open(f"{tree()}/systemd/zerod.service", encoding="ascii") as f:
        unit = dict(re.findall(r"^(StateDirectory|LogsDirectory|ReadWritePaths)=(.*)$", f.read(), re.MULTILINE))
    with open(f"{ROOT}/deploy/apparmor/usr.bin.zerod", encoding="ascii") as f:
        rules = f.read()
    for directory in (f"/var/lib/{unit['StateDirectory']}", f"/var/log/{unit['LogsDirectory']}", unit["ReadWritePaths"]):
        assert f"  {directory}/ rw,\n" in rules and f"  {directory}/** rw" in rules, directory


@case
def apparmor_profile_is_read():
    run(tool("apparmor_parser"), "--skip-kernel-load", "--skip-cache", f"{ROOT}/deploy/apparmor/usr.bin.zerod")


@cases_of(SHELLS)
def completion_is_read_by(shell):
    run(tool(shell), "-n", f"{tree()}/deploy/{SHELLS[shell]}")


@case
def completion_offers_commands_and_their_options():
    commands = re.findall(r"^  ([a-z-]+) ", run(Tools.zeroctl, "--help").split("Commands:")[1].split("\n\n")[0], re.MULTILINE)
    assert len(commands) > 20 and set(commands) <= set(completed(""))
    for command in commands:
        options = set(re.findall(r"^ {2}[ -][ a-z][ ,] (--[a-z-]+)", run(Tools.zeroctl, command, "--help").split("Options:")[1],
                                 re.MULTILINE))
        assert options == set(completed(command, "--")), (command, options)


@case
def completion_leaves_values_to_the_shell():
    assert not completed("--socket", "") and not completed("plan", "--model", "") and not completed("export", "job", "")


if __name__ == "__main__":
    main()
