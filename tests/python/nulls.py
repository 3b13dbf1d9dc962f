#!/usr/bin/env python3
"""NULL where a function of zero.h needs an object is EINVAL, or 0 from a function that returns no status; nothing crashes.

Goes through every pointer of every declaration: a new function is tried as it stands in the header, and a pointer
that may be NULL has its line in MAY_BE_NULL.
"""
import ctypes

from common import HERE, Cluster, declarations, output, python
from harness import case, main
from zerod import _library
from zerod.errors import STATUS

CODES = {name: code for name, code, *_ in STATUS}
MAY_BE_NULL = {
    "zero_attach": {"layout", "needs"}, "zero_close": {"client"}, "zero_error": {"client"}, "zero_free": {"memory"}, "zero_on_wait": {"arg"},
    "zero_layout_free": {"layout"}, "zero_layout_group": {"ranks"}, "zero_layout_group_ranks": {"ret_ranks"},
    "zero_layout_group_tensors": {"ret_first"}, "zero_layout_optimizer": {"optimizer"},
    "zero_layout_state": {"state", "master"}, "zero_layout_group_state": {"ret_master"}, "zero_layout_tensor_shape": {"ret_shape"}, "zero_layout_tensor_rows": {"ret_rows"}, "zero_push": {"present", "sync"}, "zero_query": {"argument"},
    "zero_release": {"sync"}, "zero_stash_release": {"sync"}, "zero_stash_write": {"sync"}, "zero_step": {"ret_result"},
}
NOTHING = {"zero_fd": -1, "zero_layout_error": b"the layout is NULL"}  # else 0, false or NULL


def given(declared, kind, client, layout):
    """An argument that is there."""
    if "struct zero_client *" in declared and "**" not in declared:
        return client
    if "struct zero_layout *" in declared and "**" not in declared:
        return layout
    if "*" not in declared:
        return kind() if isinstance(kind, type(_library.TELL)) else 1
    if kind is ctypes.c_char_p:
        return b"x"
    if kind is ctypes.POINTER(ctypes.c_char_p):
        return (ctypes.c_char_p * 1)(b"/dev/null")
    return ctypes.cast(ctypes.create_string_buffer(4096), kind)


def try_all(client, layout):
    """Prints each try before it is made."""
    for name, (result, declared) in sorted(declarations().items()):
        _, *kinds = _library.PROTOTYPES[name]
        pointers = [i for i, d in enumerate(declared) if "*" in d]
        for i in pointers:
            argument = declared[i].split("*")[-1].split("[")[0].strip().removeprefix("const ")
            argument = "layout" if "struct zero_layout *" in declared[i] and "**" not in declared[i] else argument
            if argument in MAY_BE_NULL.get(name, ()):
                continue
            print(f"{name}: {argument}", flush=True)
            arguments = [given(d, k, client, layout) for d, k in zip(declared, kinds)]
            arguments[i] = None
            told = getattr(_library.library(), name)(*arguments)
            if result == "int" and name not in NOTHING:
                assert told == CODES["EINVAL"], f"status {told}"
                if argument == "client":
                    assert _library.library().zero_error(None) == b"the client is NULL"
            elif argument in ("client", "layout"):
                assert told in (NOTHING.get(name), None, 0, False), told
    print("all of them")


@case
def every_pointer_of_every_function():
    with Cluster(1) as cluster:
        script = (f"import sys; sys.path.insert(0, {HERE!r}); import common, nulls, zerod\n"
                  f"with zerod.connect('nulls', 0, 1, socket={cluster[0].socket!r}) as client:\n"
                  "    client.attach(common.small_layout(), stash=4096)\n"
                  "    with zerod.Layout().handle() as layout: nulls.try_all(client._handle, layout)\n")
        status, out, err = output(python(script, cluster))
        assert status == 0 and out.endswith("all of them\n"), f"{status} after {out[-200:]}\n{err}"


if __name__ == "__main__":
    main()
