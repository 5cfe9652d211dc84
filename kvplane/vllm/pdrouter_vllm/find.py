"""Where NIXL is. The library looks in the same places by itself, but by the environment that its process was started with, and that is
no more where a process has given itself a title, as vLLM's do.
"""

import os
import pathlib

VARIABLE = "PDROUTER_NIXL_LIB"
PLACES = ("libnixl_capi.so", ".nixl_cu*.mesonpy.libs/libnixl_capi.so", "lib/*/libnixl_capi.so")


def nixl(environ, folders):
    """The path of NIXL's C library: what the variable names (the file, or a folder to look in), else in the first of the absolute folders
    that has it, as that of vLLM's own packages does where NIXL is installed. "" where it is nowhere."""
    if at := environ.get(VARIABLE):
        return str(at) if pathlib.Path(at).is_file() else within(at)
    return next(filter(None, map(within, filter(os.path.isabs, folders))), "")


def within(folder):
    found = (sorted(pathlib.Path(folder).glob(place)) for place in PLACES)
    return next((str(f[0]) for f in found if f), "")
