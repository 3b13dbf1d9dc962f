#!/usr/bin/env python3
"""Makes the man pages of libzero out of zero.h, which alone documents its functions.

usage: pages.py ZERO.H                                lists the pages
       pages.py ZERO.H ZERO.3 VERSION DIRECTORY       writes them

A section of the header (/* ---- title ---- */) becomes the page of its first function; the pages of its
other functions are links to that one.  In zero.3 the line @FUNCTIONS@ becomes the list of all of them.
"""
import os
import re
import sys

SECTION = re.compile(r"^/\* -{4} (.+?) -+ \*/$", re.MULTILINE)
FUNCTION = re.compile(r"\b(zero_[a-z_]+)\([^()]*\);")
COMMENT = re.compile(r"/\*(.*?)\*/\n", re.DOTALL)


def sections(header):
    """(title, text, functions) of those that declare functions."""
    parts = SECTION.split(header.split("#ifdef __cplusplus")[1])[1:]
    for title, text in zip(parts[::2], parts[1::2]):
        text = text.split("#ifdef")[0]
        functions = FUNCTION.findall(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
        if functions:
            yield title, text, functions


def roff(text):
    """Minus signs that can be copied, and nothing that begins a request."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.MULTILINE)


def described(text):
    """Declarations, each with the comment that stands before it in the header behind it."""
    comment = ""
    for block in re.split(r"\n{2,}|(?=^/\*)", text.strip("\n"), flags=re.MULTILINE):
        found = COMMENT.match(block + "\n")
        if found:
            comment, block = found[1], (block + "\n")[found.end():]
        if block.strip():
            yield ".PP\n.nf\n.ft B\n" + roff(block.strip("\n")) + "\n.ft R\n.fi\n"
        if comment:
            lines = [re.sub(r"^ ?\*? ?", "", line).strip() for line in comment.strip().split("\n")]
            yield ".RS 4\n" + roff("\n".join(lines)).replace("\n\n", "\n.PP\n") + "\n.RE\n"
            comment = ""


def page(title, text, functions, version):
    return (f".TH {functions[0].upper()} 3 \"\" \"zerod {version}\" \"zerod\"\n"
            f".SH NAME\n{', '.join(functions)} \\- {title}\n"
            ".SH SYNOPSIS\n.B #include <zero.h>\n"
            f".SH DESCRIPTION\n{''.join(described(text))}"
            ".SH SEE ALSO\n.BR zero (3)\n")


def overview(found):
    """Of all sections, for zero.3."""
    return "".join(f".TP\n.B {title}\n" + " ,\n".join(f".BR {f} (3)" for f in functions) + "\n"
                   for title, _, functions in found)


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        found = list(sections(f.read()))
    if len(sys.argv) == 2:
        print("zero.3", *(f"{function}.3" for _, _, functions in found for function in functions))
        return
    _, _, zero, version, directory = sys.argv
    with open(zero, encoding="utf-8") as f:
        pages = {"zero": f.read().replace("@FUNCTIONS@\n", overview(found)).replace("@VERSION@", version)}
    for title, text, functions in found:
        pages.update({f: f".so man3/{functions[0]}.3\n" for f in functions})
        pages[functions[0]] = page(title, text, functions, version)
    for name, text in pages.items():
        with open(os.path.join(directory, f"{name}.3"), "w", encoding="utf-8") as f:
            f.write(text)


main()
