#!/usr/bin/env python3
"""The package's copies of declarations in zero.h and zero_types.h agree with the headers."""
import ctypes
import os
import re

from common import HEADER, PACKAGE, ROOT, TYPES, declarations, text_of, zerod
from c_compiler import check_layout
from harness import case, cases_of, main
from zerod import _library, errors
from zerod.sets import HYPERPARAMETERS

MAP = os.path.join(ROOT, "client", "lib", "libzero.map")

STRUCTS = {"zero_tensor": _library.Tensor, "zero_options": _library.Options, "zero_needs": _library.Needs,
           "zero_set": _library.Set, "zero_step_options": _library.Step, "zero_result": _library.Result,
           "zero_sync": _library.Sync, "zero_stash": _library.Stash, "zero_values": _library.Values,
           "zero_muon": _library.Muon, "zero_newton_schulz": _library.NewtonSchulz}
C_TYPES = {"int": ctypes.c_int, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
           "size_t": ctypes.c_size_t, "double": ctypes.c_double, "bool": ctypes.c_bool, "zero_tell": _library.TELL}


def entries(name, header=TYPES):
    """Arguments of an X-macro's entries."""
    body = re.search(rf"#define {name}\(X\)(.*?)\n\n", text_of(header), re.S)[1]
    return [[a.strip().strip('"') for a in x.split(",")] for x in re.findall(r"X\(([^)]*)\)", body)]


OPTIMIZERS = {name: struct for name, struct, *_ in entries("ZERO_OPTIMIZER_MAP", HEADER)}
for optimizer, struct in OPTIMIZERS.items():
    STRUCTS.setdefault(struct, type(optimizer, (ctypes.Structure,),
                                    {"_fields_": [(n, ctypes.c_double) for n in HYPERPARAMETERS.get(optimizer, ())]}))


@case
def optimizers_are_those_of_the_header():
    assert list(HYPERPARAMETERS) == list(OPTIMIZERS)


@case
def adjustments_of_the_learning_rate():
    told = re.findall(r"ZERO_ADJUST_(\w+) = (\d+)", text_of(HEADER))
    assert {name.lower(): int(code) for name, code in told} == _library.ADJUST_LR


@case
def muon_begins_with_the_numbers_of_the_header():
    numbers = re.search(r'ZERO_MUON\(lr\) \{ "muon", \{ \{ \(lr\), (.*?), 0 \} \}', text_of(HEADER))[1].split(", ")
    adjust = re.search(r"ZERO_ADJUST_(\w+)", numbers.pop())[1].lower()
    with open(os.path.join(ROOT, "client", "lib", "optimizers.c"), encoding="utf-8") as f:
        numbers += re.search(r"torch_ns = \{ (.*?) \}", f.read())[1].split(", ")
    own = zerod.MuonSet()
    assert list(map(float, numbers)) == [own.momentum, own.weight_decay, own.nesterov, *own.ns_coefficients, own.eps,
                                         own.ns_steps]
    assert adjust == "original" and own.adjust_lr is None


@case
def statuses_have_their_codes():
    assert [(n, int(c)) for n, c, *_ in entries("ZERO_STATUS_MAP")] == [(n, c) for n, c, _ in errors.STATUS]


@case
def every_status_has_its_own_exception():
    kinds = [kind for _, code, kind in errors.STATUS if code]
    assert len(set(kinds)) == len(kinds)
    for name, code, kind in errors.STATUS[1:]:
        error = errors.error_of(code, "why")
        assert type(error) is kind and issubclass(kind, zerod.Error) and kind is not zerod.Error
        assert (error.status, error.code, str(error)) == (name, code, "why")
        assert getattr(zerod, kind.__name__) is kind and kind.__name__ in zerod.__all__


@case
def unknown_status_is_an_error():
    error = errors.error_of(4711, "of a newer library")
    assert type(error) is zerod.Error and error.code == 4711 and "newer" in str(error)


@case
def library_has_the_same_status_names():
    for name, code, _ in errors.STATUS:
        assert _library.library().zero_status_name(code).decode() == name


@case
def data_types():
    told = {text: (int(code), int(size)) for _, code, size, text in entries("ZERO_DTYPE_MAP")}
    assert told == {t: (_library.DTYPES[t], _library.DTYPE_BYTES[t]) for t in _library.DTYPES}
    assert {text: int(code) for _, code, text in entries("ZERO_BYTES_MAP")} == _library.BYTES


@case
def planes():
    codes = {name: (text, int(code)) for name, code, text in entries("ZERO_PLANE_MAP")}
    others = re.findall(r"#define ZERO_PLANE_(\w+) ZERO_PLANE_(\w+)", text_of(HEADER))
    assert dict(codes.values()) | {name.lower(): codes[of][1] for name, of in others} == _library.PLANES


@case
def first_values():
    told = re.findall(r"ZERO_INIT_(\w+) = (\d+)", text_of(TYPES))
    assert {name.lower(): int(code) for name, code in told} == _library.INITS


@case
def reductions():
    told = re.findall(r"ZERO_REDUCE_(\w+) = (\d+)", text_of(TYPES))
    assert {name.lower(): int(code) for name, code in told} == _library.REDUCTIONS


@case
def choices_for_a_lost_rank():
    told = re.findall(r"ZERO_LOST_(\w+) = (\d+)", text_of(TYPES))
    assert {name.lower(): int(code) for name, code in told} == _library.ON_LOST


@case
def limits():
    told = dict(re.findall(r"ZERO_(\w+_MAX) = (\d+)", text_of(TYPES)))
    for name in ("NAME_MAX", "JOB_MAX", "DIM_MAX", "SET_MAX", "RANK_MAX", "BLOB_MAX", "VALUES_MAX"):
        assert getattr(_library, name) == int(told[name]), name
    assert "ZERO_ALL UINT32_MAX" in text_of(HEADER) and _library.ALL == 2**32 - 1
    assert "ZERO_OBSERVER (-1)" in text_of(HEADER) and _library.OBSERVER == -1


def fields_of(name):
    """All fields; a set's values are in C members of a union without a name."""
    return [field if (name, field) != ("zero_set", "of") else "muon" for field, _ in STRUCTS[name]._fields_]


@cases_of(STRUCTS)
def layout_in_memory_of(name):
    """ctypes lays the struct out as the C compiler does."""
    check_layout(name, STRUCTS[name], fields_of(name), HEADER, [os.path.dirname(TYPES)])


def agrees(c, python, result=False):
    """Whether a C declaration has that ctypes type."""
    if result and c == "void":
        return python is None
    if "*" in c:
        return python in (ctypes.c_void_p, ctypes.c_char_p) or issubclass(python, ctypes._Pointer)
    if "enum " in c:
        return python is ctypes.c_int
    return python is C_TYPES[re.sub(r"\bconst\b", "", c).split()[0]]


@case
def functions_have_their_types():
    for name, (result, arguments) in declarations().items():
        known_result, *known = _library.PROTOTYPES[name]
        assert agrees(result, known_result, result=True), f"{name} returns {result}"
        assert len(known) == len(arguments), name
        for c, python in zip(arguments, known):
            assert agrees(c, python), f"{name}: {c} is not {python}"


@case
def functions_are_those_that_libzero_exports():
    with open(MAP, encoding="utf-8") as f:
        exported = set(re.findall(r"zero_\w+", f.read()))
    assert exported == set(_library.PROTOTYPES) == set(declarations())


@case
def version_is_that_of_the_service():
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as f:
        version = re.search(r"version: '([^']*)'", f.read())[1]
    with open(os.path.join(PACKAGE, "pyproject.toml"), encoding="utf-8") as f:
        assert re.search(r'^version = "([^"]*)"', f.read(), re.M)[1] == version == zerod.__version__
    major, minor, patch = map(int, version.split("."))
    told = re.search(r"^#define ZERO_LIBRARY_VERSION (\d+)$", text_of(HEADER), re.M)[1]
    assert int(told) == _library.library().zero_library_version() == 10000 * major + 100 * minor + patch


if __name__ == "__main__":
    main()
