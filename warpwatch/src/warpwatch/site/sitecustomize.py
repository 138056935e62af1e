"""Begins in each Python that a watched program starts: `program.Watch.own` puts this folder on its path."""

import importlib.machinery
import importlib.util
import os
import sys

if importlib.util.find_spec("warpwatch"):
    try:
        import warpwatch  # noqa: F401  # which sees WARPWATCH=1
    except Exception as error:  # which Python would only print, and go on
        sys.exit(f"warpwatch: {error}")

# The one that this hides, if there is one.
others = [place for place in sys.path if os.path.realpath(place or ".") != os.path.dirname(os.path.realpath(__file__))]
if hidden := importlib.machinery.PathFinder.find_spec("sitecustomize", others):
    hidden.loader.exec_module(importlib.util.module_from_spec(hidden))
