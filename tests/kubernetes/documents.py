#!/usr/bin/env python3
"""Prints the documents of YAML files as a list in JSON; --check: validates each against the schemas of Kubernetes first.

usage: documents.py [--check VERSION,...] FILE...
Needs what deploy/python-requirements-types names.  A kind that is not of Kubernetes itself has no schema there.
"""
import json
import sys

import kubernetes_validate
import yaml


def main():
    files, versions = sys.argv[1:], []
    if files[0] == "--check":
        versions, files = files[1].split(","), files[2:]
    documents = []
    for file in files:
        with open(file, encoding="utf-8") as f:
            documents += yaml.safe_load_all(f)
    for d in documents:
        for version in versions if "monitoring.coreos.com" not in d["apiVersion"] else []:
            try:
                kubernetes_validate.validate(d, version, strict=True)
            except kubernetes_validate.ValidationError as e:
                sys.exit(f"{d['kind']} {d['metadata']['name']}, Kubernetes {version}: {'.'.join(map(str, e.path))}: {e.message}")
    json.dump(documents, sys.stdout)


if __name__ == "__main__":
    main()
