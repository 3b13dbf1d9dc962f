#!/usr/bin/env python3
"""What nvcc makes of the kernels: a table of registers and of accesses to memory, and what must hold of them.

usage: machine_code.py RESULTS FOLDER...; the folders are those that cuda/nvcc.sh leaves

Rule: no kernel has a stack or spills a register.  A quad that is all there is one access.  The path for parts of a
quad has four accesses in its place, so a kernel with more than four for each wide one splits whole quads.
PTX and the words of ptxas tell this without a GPU.  RESULTS, a file in Markdown, has the same table if it names this
version of nvcc.

Where planes may have formats, 4 bytes are also a quad of 8-bit codes, or its scale: there such accesses tell nothing.

Columns: registers of a thread; blocks of 256 threads that fit a multiprocessor; loads and stores of 16 bytes (a quad in
fp32), 8 bytes (a quad in half precision), 4 and 2 bytes (one element).  a / b: of the architectures in turn.
Exit status: 0, or 1 with a sentence for each thing that is wrong.
"""
import os
import re
import sys

THREADS, QUAD = 256, 4
REGISTERS, RESIDENT, UNIT = 65536, 2048, 8  # of a multiprocessor: registers, threads; registers come in units
RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../daemon/compute/device/rules.h")
WIDTHS = (16, 8, 4, 2)
ACCESS = re.compile(r"\b(ld|st)(?:\.volatile|\.weak)?\.global(?:\.nc|\.c[agsv]|\.wb)?(?:\.v([24]))?\.[a-z](16|32|64)\b")
ENTRY = re.compile(r"\.entry (\w+)\(")
FIGURES = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                     r"(\d+) bytes spill loads.*?Used (\d+) registers", re.S)


def kernels_of(ptx):
    """Mangled name -> how often each (operation, bytes) stands in the kernel.  A single number of 8 bytes does not count."""
    _, *parts = ENTRY.split(ptx)
    found = {}
    for name, body in zip(parts[::2], parts[1::2]):
        counts = found[name] = {(operation, width): 0 for operation in ("ld", "st") for width in WIDTHS}
        for operation, many, bits in ACCESS.findall(body):
            width = int(many or 1) * int(bits) // 8
            if many or width < 8:
                counts[operation, width] = counts.get((operation, width), 0) + 1
    return found


def read_kept(folder):
    """(architecture, mangled name) -> (registers, bytes of stack and spills, accesses), and the version of nvcc."""
    accesses, versions = {}, set()
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="ascii") as file:
            text = file.read()
        if name == "ptxas":
            figures = {(target, kernel): (int(registers), sum(map(int, bytes_)))
                       for kernel, target, *bytes_, registers in FIGURES.findall(text)}
        else:
            versions |= set(re.findall(r"^// .*release [\d.]+, (V[\d.]+)", text, re.M))
            accesses |= {(re.search(r"^\.target (\w+)", text, re.M)[1], k): v for k, v in kernels_of(text).items()}
    if not accesses or accesses.keys() != figures.keys():
        sys.exit(f"{folder}: kernels of the PTX and of ptxas differ: {sorted(accesses)}, {sorted(figures)}")
    version, = versions
    return {key: (*figures[key], accesses[key]) for key in accesses}, version


def name_of(mangled):
    """The kernel's name, and the type, the rule or the form that its template has, if it is one."""
    name, argument, more = re.match(r"_Z\d+(\w+?)_kernel(?:I(?:L?\d+)?(\w+?)E(\w*)|\d)", mangled).groups()
    if argument is None:
        return name
    if argument.startswith("update_rule"):
        with open(RULES, encoding="ascii") as file:
            argument = re.findall(r"X\((\w+), \w+, \d", file.read())[int(argument[len("update_rule"):])].lower()
        argument += "_ema" * more.startswith("Lb1E") + " packed" * more.startswith("Lb1E", 4)
    elif argument.startswith("product_form"):
        argument = ("a b", "a' b", "a b'")[int(argument[len("product_form"):])]
    return f"{name} {'fp32' if argument == 'f' else argument}"


def blocks(registers):
    each = -(-registers // UNIT) * UNIT * THREADS
    return min(REGISTERS // each, RESIDENT // THREADS)


def faults(kernel, spilt, accesses):
    if spilt:
        yield f"{kernel} has {spilt} bytes of stack and spills"
    sizes = (2,) if "pack" in kernel else (4, 2)
    for operation, what in (("ld", "loads"), ("st", "stores")):
        for size in sizes:
            wide, single = accesses[operation, QUAD * size], accesses[operation, size]
            if single > QUAD * wide:
                yield f"{kernel} {what} elements of {size} bytes one at a time: {single} times, and {wide} whole quads"


def both(values):
    """One if all are the same."""
    return " / ".join(dict.fromkeys(map(str, values)))


def table(kernels):
    """kernels: name -> [(registers, bytes of stack and spills, accesses) of each architecture]."""
    counts = ", ".join(map(str, WIDTHS))
    yield f"| kernel | registers | blocks | loads of {counts} | stores |"
    yield "|---|---|---|---|---|"
    for name, found in kernels.items():
        accesses = (both(" ".join(str(a[operation, width]) for width in WIDTHS) for *_, a in found) for operation in ("ld", "st"))
        yield f"| {name} | {both(f[0] for f in found)} | {both(blocks(f[0]) for f in found)} | {' | '.join(accesses)} |"


def main():
    results, *folders = sys.argv[1:]
    kernels, wrong = {}, []
    for folder in folders:
        read, version = read_kept(folder)
        for (target, mangled), found in sorted(read.items()):
            kernels.setdefault(name_of(mangled), []).append(found)
            wrong += faults(f"{name_of(mangled)} for {target}", *found[1:])
    rows = [*table(kernels)]
    print(f"nvcc {version}", *rows, "", sep="\n")
    with open(results, encoding="utf-8") as file:
        told = file.read()
    if version not in told:
        print(f"{results} is of another nvcc")
    elif any(row not in told for row in rows):
        wrong.append(f"{results} has another table: put this one there, and look at what it says beside it")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
