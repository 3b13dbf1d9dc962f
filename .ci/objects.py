"""The objects of a build tree: who takes symbols from whom, and in which order archives are linked."""
import os
import re
import subprocess

COMPILED = re.compile(r"^build (\S+\.o): c\w*_COMPILER (\S+)", re.M)
LINKED = re.compile(r"^build (\S+): c\w*_LINKER ([^|\n]*)[^\n]*\n(?: [^\n]*\n)*? LINK_ARGS = ([^\n]*)", re.M)
ARCHIVED = re.compile(r"^build (\S+\.a): STATIC_LINKER ([^|\n]*)", re.M)


class Build:
    """A build tree: `sources` maps its objects to their sources, seen from `root`."""

    def __init__(self, root, tree):
        with open(os.path.join(tree, "build.ninja"), encoding="utf-8") as file:
            self.rules = file.read()
        self.tree = tree
        self.sources = {}
        for name, source in COMPILED.findall(self.rules):
            path = os.path.abspath(os.path.join(tree, source))
            generated = path.startswith(os.path.join(tree, ""))
            self.sources[name] = os.path.relpath(path, tree if generated else root)
        self.missing = [o for o in self.sources if not os.path.exists(os.path.join(tree, o))]
        self.defined, self.used = symbols(tree, [o for o in self.sources if o not in self.missing])

    def graph(self, chosen):
        """Source -> the sources of `chosen` that its object takes symbols from."""
        objects = [o for o in self.used if chosen(self.sources[o])]
        owner = {s: o for o in objects for s in self.defined[o]}
        return {self.sources[o]: {self.sources[owner[s]] for s in self.used[o] & owner.keys()} - {self.sources[o]}
                for o in objects}

    def archives_in_order(self):
        """(target, its archives in the order of linking) of each program and shared library."""
        for target, _, arguments in LINKED.findall(self.rules):
            yield target, [a for a in arguments.split() if a.endswith(".a") and not os.path.isabs(a)]

    def backward(self, archives):
        """(archive, archive before it that it takes a symbol from) of archives in this order."""
        members = {a: [o for o in m.split() if o in self.used] for a, m in ARCHIVED.findall(self.rules)}
        before = {}
        for archive in archives:
            own = {s for o in members.get(archive, []) for s in self.defined[o]}
            wanted = {s for o in members.get(archive, []) for s in self.used[o]} - own
            for other in sorted({before[s] for s in wanted & before.keys()}):
                yield archive, other
            before.update(dict.fromkeys(own, archive))


def symbols(tree, objects):
    """(object -> global symbols that it defines, object -> those that it takes)"""
    defined = {o: set() for o in objects}
    used = {o: set() for o in objects}
    if not objects:
        return defined, used
    # from each object a heading "OBJECT:", then "SYMBOL TYPE ..." a line
    told = subprocess.run(["nm", "-P", *objects], cwd=tree, capture_output=True, text=True, check=True).stdout
    at = objects[0]
    for line in told.splitlines():
        words = line.split()
        if len(words) == 1 and line.endswith(":"):
            at = line[:-1]
        elif len(words) > 1 and words[1] == "U":
            used[at].add(words[0])
        elif len(words) > 1 and words[1] in "TDBRVWC":
            defined[at].add(words[0])
    return defined, used
