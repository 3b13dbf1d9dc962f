"""What the C compiler says of structures and constants: for the copies that Python has of them."""
import ctypes
import os
import subprocess
import tempfile

from harness import Skip


def values(expressions, header, folders):
    """The integers that these constant expressions are in C; header: as it is included."""
    numbers = "".join(f'printf("%lld\\n", (long long)({e}));' for e in expressions)
    text = f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{ {numbers} return 0; }}\n'
    with tempfile.TemporaryDirectory() as directory:
        source, exe = os.path.join(directory, "values.c"), os.path.join(directory, "values")
        with open(source, "w", encoding="ascii") as file:
            file.write(text)
        try:
            subprocess.run([os.environ.get("CC", "cc"), *("-I" + f for f in folders), source, "-o", exe], check=True)
        except FileNotFoundError:
            raise Skip("there is no C compiler") from None
        told = subprocess.run([exe], capture_output=True, text=True, check=True).stdout.split()
    return [int(number) for number in told]


def check_layout(name, copy, fields, header, folders):
    """ctypes lays these fields of its copy of the struct out as the C compiler does."""
    known = {f"sizeof(struct {name})": ctypes.sizeof(copy)}
    for field in fields:
        place = getattr(copy, field)
        known[f"offsetof(struct {name}, {field})"] = place.offset
        known[f"sizeof(((struct {name} *)0)->{field})"] = place.size
    wrong = {e: (c, known[e]) for e, c in zip(known, values(known, header, folders)) if c != known[e]}
    assert not wrong, f"in C and in ctypes: {wrong}"
