#!/usr/bin/env python3
"""Makes the man pages of libzero out of zero.h, which alone documents its functions.

usage: pages.py ZERO.H                                                              lists the pages
       pages.py ZERO.H ZERO_TYPES.H ZERO.3 CALLS.C README.md VERSION DIRECTORY   writes them

A comment of the header and the functions that follow it without an empty line become a page; the pages of all but the
first function are links to it.  The page has the structures that its prototypes and its comment name.  Lines of a
comment that are indented stay as they are.  In zero.3 the line @FUNCTIONS@ becomes the list of all functions,
@PROGRAM@ the program of client/README.md.
"""
import os
import re
import sys
import textwrap

SECTION = re.compile(r"^/\* -{4} (.+?) -+ \*/$", re.MULTILINE)
FUNCTION = re.compile(r"^[a-z][\w ]*?[ *]+(zero_\w+)\([^()]*\);", re.MULTILINE)
STRUCT = re.compile(r"^struct (zero_\w+) \{", re.MULTILINE)
BLOCK = re.compile(r"\n{2,}|\n(?=/\*)")
EXAMPLE = re.compile(r"^/\* ((?:zero_\w+ ?)+): (.+?) \*/\n(.*?)^}\n", re.MULTILINE | re.DOTALL)
STATUS = re.compile(r"\bZERO_E[A-Z]+\b")
CLIENT = "struct zero_client *client"


class Block:
    """A comment and the declarations that it stands before."""

    def __init__(self, comment, code):
        self.comment, self.code = comment, code
        bare = re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)
        self.functions = [m[1] for m in FUNCTION.finditer(bare)]
        self.prototypes = [" ".join(m[0].split()) for m in FUNCTION.finditer(bare)]
        self.structs = [m[1] for m in STRUCT.finditer(code)]


def lines_of(comment):
    return [re.sub(r"^ ?\* ?", "", line).rstrip() for line in comment.strip().split("\n")]


def blocks(text):
    """Those of a section; a comment alone belongs to what follows, other code to the structure before it."""
    found, comment = [], []
    for part in BLOCK.split(text.strip("\n")):
        match = re.match(r"/\*(.*?)\*/\n?", part, re.DOTALL)
        if match:
            comment += [""] * bool(comment) + lines_of(match[1])
            part = part[match.end():]
        if not part.strip():
            continue
        block = Block(comment, part.strip("\n"))
        if found and not block.functions and not block.structs:
            found[-1].comment = [*found[-1].comment, "", *block.comment]
            found[-1].code += "\n" + block.code
        else:
            found.append(block)
        comment = []
    return found


def sections(header):
    """(title, blocks) of those that declare functions."""
    parts = SECTION.split(header.split("#ifdef __cplusplus")[1])[1:]
    for title, text in zip(parts[::2], parts[1::2]):
        found = blocks(text.split("#ifdef")[0])
        if any(b.functions for b in found):
            yield title, found


# ---- roff ----


def roff(text):
    """Minus signs that can be copied, and nothing that begins a request."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.MULTILINE)


def as_it_is(text, font="R"):
    return f".PP\n.nf\n.ft {font}\n{roff(text)}\n.ft R\n.fi\n"


def prose(lines):
    """A comment's paragraphs; indented lines, such as formulas, are not filled."""
    text, kept = "", []
    for line in [*lines, ""]:
        if kept and not line.startswith("  "):
            text, kept = text + as_it_is("\n".join(kept)) + ".PP\n", []
        if line.startswith("  "):
            kept.append(line)
        else:
            text += roff(line) + "\n" if line else ".PP\n"
    return re.sub(r"(\.PP\n)+(?=\.PP\n)|(\.PP\n)+$", "", text)


# ---- a page ----


def sentences(lines):
    return re.split(r"(?<=[.;])\s+(?=[A-Z])", " ".join(line for line in lines if not line.startswith("  ")))


def summary(lines):
    """The begin of the first sentence, for NAME and whatis."""
    first = re.split(r"[.:;](?=\s|$)| [(\[]", sentences(lines)[0])[0].strip()
    return first[0].lower() + first[1:]


def errors(block, shown, meanings):
    """The sentences of the comments that name a status, and what every such call may return."""
    text, told = ".SH ERRORS\n", {}
    for sentence in (s for b in (block, *shown) for s in sentences(b.comment)):
        names = tuple(dict.fromkeys(STATUS.findall(sentence)))
        if names == ("ZERO_EABORTED",) and not sentence.startswith(names[0]):
            continue  # says what holds until then
        if names:
            told.setdefault(names, []).append(sentence.removeprefix(f"{names[0]}: "))
    for names, said in told.items():
        text += f".TP\n.B {', '.join(names)}\n{roff(' '.join(said))}\n"
    common = {"ZERO_EINVAL"}
    if any(CLIENT in p for p in block.prototypes):
        common |= {"ZERO_ECLOSED"} | ({"ZERO_EDEADLINE", "ZERO_EABORTED"} if "[blocks" in " ".join(block.comment) else set())
    listed = ", ".join(f"\\fB{name}\\fR ({meanings[name]})" for name in sorted(common))
    return text + f".PP\nAs every such call: {listed}; see\n.BR zero (3).\n"


def returned(block, shown, meanings):
    text = ".SH RETURN VALUE\n"
    by_status = [p for p in block.prototypes if p.startswith("int ") and not p.startswith("int zero_fd(")]
    if by_status:
        error = "zero_error" if CLIENT in by_status[0] or "zero_connect" in by_status[0] else "zero_layout_error"
        return (f"{text}\\fBZERO_OK\\fR (0), or another \\fBenum zero_status\\fR, whose cause\n.BR {error} (3)\n"
                "tells.  What a \\fIret_\\fR argument points to is written only on success.\n" + errors(block, shown, meanings))
    if all(p.startswith("void ") for p in block.prototypes):
        return f"{text}None.\n"
    return text + "As described; 0, false or NULL where an object is NULL or an index is out of range.\n"


def named(block, structs):
    """The structures that a page shows: those that it names, and those that these have."""
    found, text = [], " ".join((*block.prototypes, *block.comment))
    for name in structs:
        if re.search(rf"struct {name}\b", text):
            found.append(structs[name])
    for one in found:
        found += [s for name, s in structs.items() if re.search(rf"struct {name}\b", one.code) and s not in found]
    return [b for b in dict.fromkeys(structs.values()) if b in found]


def page(block, structs, examples, meanings, version):
    first = block.functions[0]
    text = (f".TH {first.upper()} 3 \"\" \"zerod {version}\" \"zerod\"\n"
            f".SH NAME\n{', '.join(block.functions)} \\- {roff(summary(block.comment))}\n"
            ".SH SYNOPSIS\n.nh\n.ad l\n.B #include <zero.h>\n")
    for prototype in block.prototypes:
        kept = re.sub(r"(?<!,) ", "\0", prototype)  # a line ends behind an argument
        text += as_it_is(textwrap.fill(kept, 72, subsequent_indent=8 * " ").replace("\0", " "), "B")
    text += f".SH DESCRIPTION\n{prose(block.comment)}"
    shown = named(block, structs)
    for one in shown:
        text += f".SS struct {', struct '.join(one.structs)}\n{as_it_is(one.code)}.PP\n{prose(one.comment)}"
    text += returned(block, shown, meanings)
    for functions, what, code in examples:
        if set(block.functions) & set(functions):
            text += (".SH EXAMPLES\n" if ".SH EXAMPLES" not in text else "") + f"{what}:\n{as_it_is(code)}"
    return text + ".SH SEE ALSO\n.BR zero (3)\n"


def overview(found):
    """Of all sections, for zero.3."""
    return "".join(f".TP\n.B {title}\n" + " ,\n".join(f".BR {f} (3)" for b in members for f in b.functions) + "\n"
                   for title, members in found)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def read_header(path):
    """zero.h, with the header of its own directory that it includes."""
    sets = os.path.join(os.path.dirname(path), "zero_sets.h")
    return read(path).replace('#include "zero_sets.h"\n', read(sets).split("#pragma once\n\n")[1])


def main():
    found = list(sections(read_header(sys.argv[1])))
    if len(sys.argv) == 2:
        print("zero.3", *(f"{function}.3" for _, members in found for b in members for function in b.functions))
        return
    types, zero, example, readme, version, directory = sys.argv[2:]
    meanings = {f"ZERO_{n}": text for n, text in re.findall(r'X\((E\w+), \d+, "(.*?)"\)', read(types))}
    examples = [(m[1].split(), m[2], m[3] + "}") for m in EXAMPLE.finditer(read(example))]
    program = re.search(r"^<!-- program.*?\n```c\n(.*?)\n```$", read(readme), re.MULTILINE | re.DOTALL)[1]
    structs = {name: b for _, members in found for b in members for name in b.structs}
    pages = {"zero": read(zero).replace("@FUNCTIONS@\n", overview(found)).replace("@VERSION@", version)
             .replace("@PROGRAM@\n", as_it_is(program))}
    for block in (b for _, members in found for b in members if b.functions):
        pages.update({f: f".so man3/{block.functions[0]}.3\n" for f in block.functions})
        pages[block.functions[0]] = page(block, structs, examples, meanings, version)
    for name, text in pages.items():
        with open(os.path.join(directory, f"{name}.3"), "w", encoding="utf-8") as f:
            f.write(text)


main()
