"""A processor with AVX-512 where there is none: Linux in the emulator Bochs, with one program and nothing else.

Debian's packages have all of it: ``apt-get install bochs bochsbios vgabios isolinux syslinux-common genisoimage``, and
a kernel, which is unpacked and not installed: ``apt-get download`` the package on which linux-image-cloud-amd64
depends, ``dpkg-deb -x`` it, and name its vmlinuz in ``DRIFTSCOPE_LINUX``. Bochs 2.7 gives a wrong size for a compacted
processor state, whereupon a kernel does without AVX, so it is told to keep the plain one.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_BOOT = (Path("/usr/lib/ISOLINUX/isolinux.bin"), Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"))
_ROMS = (Path("/usr/share/bochs/BIOS-bochs-latest"), Path("/usr/share/bochs/VGABIOS-lgpl-latest"))
_TOOLS = ("bochs-bin", "genisoimage")
#: xsavec and xsaves are not used: clearcpuid takes the word of the feature times 32 plus its bit.
_KERNEL = "console=ttyS0 mitigations=off nosmp clearcpuid=321,323 lpj=1000000 tsc=reliable random.trust_cpu=on quiet"
_CONFIGURATION = """\
megs: {megabytes}
romimage: file={bios}
vgaromimage: file={vga}
cpu: model=corei7_skylake_x, ips=80000000
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=boot.iso, status=inserted
{disk}boot: cdrom
clock: sync=none
com1: enabled=1, mode=file, dev=told.txt
display_library: rfb, options="timeout=0"
log: bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
"""


def linux() -> Path | None:
    """Return the kernel that is named in ``DRIFTSCOPE_LINUX``, or the last of those that are installed."""
    named = os.environ.get("DRIFTSCOPE_LINUX")
    found = [Path(named)] if named else sorted(Path("/boot").glob("vmlinuz-*-amd64"))
    return found[-1] if found and found[-1].is_file() else None


def missing() -> str | None:
    """Return what is not here, in words, or None."""
    absent = [name for name in _TOOLS if shutil.which(name) is None]
    absent += [str(path) for path in (*_BOOT, *_ROMS) if not path.is_file()]
    absent += [] if linux() else ["a kernel (DRIFTSCOPE_LINUX)"]
    return f"an emulated processor needs {', '.join(absent)}" if absent else None


def _archived(name: str, mode: int, content: bytes) -> bytes:
    """Return one member of a cpio archive, as the kernel unpacks it."""
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(f"{value:08x}".encode() for value in fields) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)


def _initial(files: Mapping[str, Path]) -> bytes:
    folders = sorted({str(parent) for name in files for parent in Path(name).parents} - {"."})
    members = [_archived(folder, 0o040755, b"") for folder in folders]
    members += [_archived(name, 0o100755, path.read_bytes()) for name, path in files.items()]
    return gzip.compress(b"".join([*members, _archived("TRAILER!!!", 0, b"")]), 1)


def run(
    files: Mapping[str, Path],
    arguments: Sequence[str],
    folder: Path,
    *,
    disk: Path | None = None,
    seconds: float = 3600,
) -> str:
    """Boot with these files in memory, ``init`` among them, and return what the machine wrote.

    Parameters
    ----------
    files : mapping of str to Path
        Name in the machine's memory, without a leading slash, to the file here. ``init`` is started with the arguments,
        and switches the machine off.
    arguments : sequence of str
        Of ``init``.
    folder : Path
        Where the image, the emulator's log and what was told are kept.
    disk : Path, optional
        The image of a disk, /dev/sda of the machine.
    seconds : float
        When to stop it.
    """
    kernel, tree = linux(), folder / "cd"
    assert kernel is not None
    (tree / "isolinux").mkdir(parents=True, exist_ok=True)
    for path in _BOOT:
        shutil.copy(path, tree / "isolinux")
    shutil.copy(kernel, tree / "vmlinuz")
    (tree / "initrd.gz").write_bytes(_initial(files))
    append = " ".join(["initrd=/initrd.gz", _KERNEL, "--", *arguments])
    (tree / "isolinux" / "isolinux.cfg").write_text(f"DEFAULT linux\nLABEL linux\n KERNEL /vmlinuz\n APPEND {append}\n")
    made = ["-b", "isolinux/isolinux.bin", "-c", "isolinux/boot.cat", "-no-emul-boot", "-boot-load-size", "4"]
    subprocess.run(["genisoimage", "-quiet", "-o", "boot.iso", *made, "-boot-info-table", "cd"], cwd=folder, check=True)
    line = f"ata0-slave: type=disk, mode=flat, path={disk}\n" if disk else ""
    text = _CONFIGURATION.format(megabytes=2032 if disk else 256, bios=_ROMS[0], vga=_ROMS[1], disk=line)
    (folder / "bochsrc").write_text(text)
    (folder / "commands").write_text("c\n")  # Debian's Bochs starts in its debugger
    (folder / "told.txt").write_text("")
    command = ["bochs-bin", "-q", "-f", "bochsrc", "-rc", "commands"]
    with (folder / "emulator.txt").open("w") as output:
        subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=seconds)
    return (folder / "told.txt").read_text(errors="replace")
