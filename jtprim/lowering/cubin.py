"""What a program carries of a cubin: all but the PTX text that the assembler keeps in it.

With line information on, which is Triton's default, ``ptxas`` copies its input into the section
``.nv_debug_ptx_txt``: half of a typical cubin, of use to nothing but a debugger's view of PTX. The runtime
looks a kernel up by its whole payload at every launch, and XLA hashes the program that contains it. The
line tables, which profilers read, stay.
"""

from __future__ import annotations

import struct

_PTX_TEXT = b".nv_debug_ptx_txt"

# ELF-64, little-endian (System V ABI, chapter 4): where the header has the section headers' offset,
# and their size, number and the index of the one that has the names; a section header's first fields.
_SECTION_HEADERS_AT = 0x28
_SECTION_HEADERS = struct.Struct("<3H")
_SECTION_HEADERS_COUNT_AT = 0x3A
_SECTION = struct.Struct("<2I4Q")
_NO_BITS = 8


def without_ptx_text(image: bytes) -> bytes:
    """The cubin with zeros, which compress to nothing, where it repeats its PTX; of the same length."""
    (headers,) = struct.unpack_from("<Q", image, _SECTION_HEADERS_AT)
    size, count, names = _SECTION_HEADERS.unpack_from(image, _SECTION_HEADERS_COUNT_AT)
    sections = [_SECTION.unpack_from(image, headers + size * index) for index in range(count)]
    names_at = sections[names][4]
    for name, kind, _, _, offset, length in sections:
        at = names_at + name
        if kind != _NO_BITS and image[at : image.index(b"\0", at)] == _PTX_TEXT:
            image = image[:offset] + bytes(length) + image[offset + length :]
    return image
