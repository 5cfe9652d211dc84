"""Packs pdrouter_vllm and the C library into a wheel: wheel.py LIBRARY FOLDER. Standard library only; the same input gives the same
bytes. Installing it needs no network and no compiler: it depends on nothing, as vLLM is what loads it.
"""

import base64
import ctypes
import hashlib
import pathlib
import platform
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
NAME = "pdrouter_vllm"
FLAT = (1980, 1, 1, 0, 0, 0)


def glibc(library):
    """The oldest glibc that has every symbol which the library asks for, as (major, minor)."""
    needed = {tuple(int(n) for n in part.split(b".")[:2]) for part in versions(library.read_bytes())}
    return max(needed, default=(2, 17))


def versions(raw):
    """The glibc versions that are named in an ELF file."""
    at = raw.find(b"GLIBC_2.")
    while at >= 0:
        end = raw.index(b"\0", at)
        yield raw[at + len(b"GLIBC_") : end]
        at = raw.find(b"GLIBC_2.", end)


def version(library):
    dll = ctypes.CDLL(str(library))
    dll.pdkv_version.restype = ctypes.c_char_p
    return dll.pdkv_version().decode()


def tag(library):
    major, minor = glibc(library)
    return f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"


def build(library, folder):
    """Writes the wheel into the folder and returns its path."""
    number, platforms = version(library), tag(library)
    info = f"{NAME}-{number}.dist-info"
    files = {f"{NAME}/{p.name}": p.read_bytes() for p in sorted((HERE / NAME).glob("*.py"))}
    files[f"{NAME}/libpdkv.so"] = library.read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: pdrouter-vllm\nVersion: {number}\nSummary: pdrouter's KV plane as a connector of vLLM\nRequires-Python: >=3.10\n"
    ).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: pdrouter\nRoot-Is-Purelib: false\nTag: {platforms}\n".encode()
    files[f"{info}/licenses/LICENSE"] = (HERE.parents[1] / "LICENSE").read_bytes()
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={digest(raw)},{len(raw)}" for name, raw in files.items()] + [f"{record},,"]
    files[record] = ("\n".join(lines) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}-{number}-{platforms}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, raw in files.items():
            entry = zipfile.ZipInfo(name, FLAT)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            out.writestr(entry, raw)
    return path


def digest(raw):
    return base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    print(build(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
